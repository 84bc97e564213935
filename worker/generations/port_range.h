// Ports for MASTER_PORT that no other daemon of this host gives away: blocks of 64, each claimed
// through port_locks.h, outside the range that the kernel gives to connections.
//
// The files of a claim list, for the next holder of the block, the ports in use or at rest: one
// line each, with the port and the time (wall clock, seconds) from which it is free, 0 while it is
// in use. A wall clock that is stepped makes a rest shorter, or at most kRest long.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/clock.h"
#include "worker/generations/port_locks.h"

namespace meshrun::worker {

struct PortInterval {
  uint16_t first = 20000;
  uint16_t last = 29999;
};

// "20000-29999". INVALID_ARGUMENT shows the right form.
absl::StatusOr<PortInterval> ParsePortInterval(const std::string& text);

class PortRange {
 public:
  struct Options {
    PortInterval interval;
    PortLocks::Options locks;
    // Where the search for a free block starts: the same daemon finds the same block again.
    uint64_t seed = 0;
  };
  // How long a returned port rests: a rank of the old generation may still connect to it.
  static constexpr std::chrono::seconds kRest{60};

  PortRange(Options options, const Clock& clock)
      : options_(std::move(options)), clock_(clock), locks_(options_.locks) {}

  // A port that no process listens on now. RESOURCE_EXHAUSTED: the block is used up; the message
  // says what holds it.
  absl::StatusOr<uint16_t> Take();
  // Taken by an earlier incarnation of this daemon, and still in use.
  void Keep(uint16_t port) { taken_.insert(port); }
  // Its rest begins.
  void GiveBack(uint16_t port);

 private:
  struct Block {
    uint16_t first;
    uint16_t last;
    PortLocks::Claim claim;
  };
  absl::StatusOr<uint16_t> TakeFrom(const Block& block);
  absl::Status ClaimBlock();
  // What the block's last holder has written.
  void ReadRests(const Block& block);
  void WriteRests(uint16_t port) const;

  const Options options_;
  const Clock& clock_;
  PortLocks locks_;
  std::vector<Block> blocks_;
  std::set<uint16_t> taken_;
  std::map<uint16_t, SteadyNanos> resting_until_;
  uint16_t next_ = 0;
};

}  // namespace meshrun::worker
