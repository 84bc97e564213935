// Why an operation, or a group, ended without a result. A value: threads hand it on, nobody throws
// it before the c10d shell does (collective_errors.h maps each kind to its exception).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshrun::ucx {

enum class FailureKind : uint8_t {
  kInvalidArgument,  // one rank's arguments are wrong in themselves; all ranks are told
  kMismatch,         // two ranks called different operations, or with different sizes
  kDeadlock,         // ranks wait for each other in different groups
  kPeerLeft,         // a rank exited, or left the group, without calling
  kPeerLost,         // a rank died, or its host or connection did
  kTimeout,          // the operation's own time is up
  kAborted,          // abort() here or on another rank
  kTransport,        // UCX refused: no such device, out of memory
};

const char* name_of(FailureKind kind);

struct Failure {
  FailureKind kind = FailureKind::kAborted;
  // A full sentence: operation, sequence number, group, sizes, ranks, both sides' values, what to
  // look at next. The same on every rank where the kind is decided together (the first five).
  std::string message;
  // Whom it is about, as ranks of the group.
  std::vector<int> ranks;
  // True where no tensor was written: the group stays usable. False: later operations on the group
  // fail at once with this failure in their message.
  bool group_survives = false;
};

// For the control message that carries it to the other members: at most kMaxFailureBytes, longer
// sentences and lists of ranks are cut.
inline constexpr size_t kMaxFailureBytes = 4000;
std::string serialize(const Failure& failure);
// Absent: not what serialize() makes.
std::optional<Failure> parse_failure(std::span<const std::byte> bytes);

// "rank 2", "ranks 2 and 5", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more"
std::string ranks_in_words(const std::vector<int>& ranks);

}  // namespace meshrun::ucx
