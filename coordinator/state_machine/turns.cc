#include "coordinator/state_machine/turns.h"

#include <algorithm>

namespace meshrun::coordinator {
namespace {

// Virtual time of one slot with weight 1. A weight is at most 1,000.
constexpr double kPerSlot = 1'000'000;

}  // namespace

Turn Turns::Join(int32_t priority, const std::string& user, uint64_t slots, double weight) {
  Level& level = levels_[priority];
  Flow& flow = level.flows[user];
  const double length = kPerSlot * static_cast<double>(std::max<uint64_t>(slots, 1)) / weight;
  const uint64_t last = flow.queued.empty() ? 0 : *flow.queued.rbegin();
  Turn turn;
  turn.begin = std::max({level.now, flow.started_end, last});
  turn.end = turn.begin + std::max<uint64_t>(static_cast<uint64_t>(length), 1);
  flow.queued.insert(turn.end);
  return turn;
}

void Turns::JoinAgain(int32_t priority, const std::string& user, const Turn& turn) {
  levels_[priority].flows[user].queued.insert(turn.end);
}

void Turns::Leave(int32_t priority, const std::string& user, const Turn& turn) {
  auto& queued = levels_[priority].flows[user].queued;
  if (const auto one = queued.find(turn.end); one != queued.end()) queued.erase(one);
}

void Turns::Start(int32_t priority, const std::string& user, const Turn& turn, uint64_t earliest) {
  Leave(priority, user, turn);
  Level& level = levels_[priority];
  Flow& flow = level.flows[user];
  if (turn.begin <= earliest) level.now = std::max(level.now, turn.begin);
  flow.started_end = std::max(flow.started_end, turn.end);
}

void Turns::Forget(const std::string& user) {
  for (auto level = levels_.begin(); level != levels_.end();) {
    level->second.flows.erase(user);
    level = level->second.flows.empty() ? levels_.erase(level) : std::next(level);
  }
}

}  // namespace meshrun::coordinator
