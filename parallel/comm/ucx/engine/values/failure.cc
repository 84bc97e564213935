#include "parallel/comm/ucx/engine/values/failure.h"

#include <algorithm>
#include <cstring>

#include "fmt/format.h"

namespace meshrun::ucx {
namespace {

constexpr size_t kMaxListedRanks = 128;

// On the wire in front of the ranks and the sentence.
struct Head {
  uint8_t kind;
  uint8_t group_survives;
  uint16_t ranks;
  uint32_t message_bytes;
};
static_assert(sizeof(Head) == 8);

}  // namespace

const char* name_of(FailureKind kind) {
  switch (kind) {
    case FailureKind::kInvalidArgument:
      return "invalid argument";
    case FailureKind::kMismatch:
      return "mismatch";
    case FailureKind::kDeadlock:
      return "deadlock";
    case FailureKind::kPeerLeft:
      return "peer left";
    case FailureKind::kPeerLost:
      return "peer lost";
    case FailureKind::kTimeout:
      return "timeout";
    case FailureKind::kAborted:
      return "aborted";
    case FailureKind::kTransport:
      return "transport";
  }
  return "unknown";
}

std::string serialize(const Failure& failure) {
  const size_t ranks = std::min(failure.ranks.size(), kMaxListedRanks);
  const size_t room = kMaxFailureBytes - sizeof(Head) - ranks * sizeof(int32_t);
  const size_t message = std::min(failure.message.size(), room);
  const Head head{static_cast<uint8_t>(failure.kind), failure.group_survives,
                  static_cast<uint16_t>(ranks), static_cast<uint32_t>(message)};
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  for (size_t i = 0; i < ranks; ++i) {
    const int32_t rank = failure.ranks[i];
    bytes.append(reinterpret_cast<const char*>(&rank), sizeof(rank));
  }
  return bytes.append(failure.message, 0, message);
}

std::optional<Failure> parse_failure(std::span<const std::byte> bytes) {
  Head head;
  if (bytes.size() < sizeof(head)) return std::nullopt;
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.kind > static_cast<uint8_t>(FailureKind::kTransport) ||
      bytes.size() != sizeof(head) + head.ranks * sizeof(int32_t) + head.message_bytes) {
    return std::nullopt;
  }
  Failure failure;
  failure.kind = static_cast<FailureKind>(head.kind);
  failure.group_survives = head.group_survives != 0;
  const std::byte* at = bytes.data() + sizeof(head);
  for (int i = 0; i < head.ranks; ++i, at += sizeof(int32_t)) {
    int32_t rank;
    std::memcpy(&rank, at, sizeof(rank));
    failure.ranks.push_back(rank);
  }
  failure.message.assign(reinterpret_cast<const char*>(at), head.message_bytes);
  return failure;
}

std::string ranks_in_words(const std::vector<int>& ranks) {
  constexpr size_t kNamed = 8;
  if (ranks.empty()) return "no rank";
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  std::string words = fmt::format("ranks {}", ranks[0]);
  const size_t named = std::min(ranks.size(), kNamed);
  const bool all = named == ranks.size();
  for (size_t i = 1; i < named; ++i) {
    words += fmt::format("{} {}", all && i + 1 == named ? " and" : ",", ranks[i]);
  }
  if (!all) words += fmt::format(" and {} more", ranks.size() - named);
  return words;
}

}  // namespace meshrun::ucx
