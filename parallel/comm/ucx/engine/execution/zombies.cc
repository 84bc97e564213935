#include "parallel/comm/ucx/engine/execution/zombies.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "parallel/comm/ucx/engine/execution/peer_liveness.h"

namespace meshrun::ucx {
namespace {

// A peer may still write into its memory or read it: that must never be anything else's.
void keep_for_ever(const OperationPtr& operation) {
  static Mutex& mu = *new Mutex;
  static auto& kept = *new std::vector<OperationPtr>;
  MutexLock lock(mu);
  kept.push_back(operation);
}

}  // namespace

void Zombies::add(const OperationPtr& operation) {
  if (operation->outstanding > 0 || operation->has_lent()) {
    kept_[operation.get()] = operation;
  } else {
    release(*operation);
  }
}

void Zombies::request_done(RunningOperation& operation) {
  if (operation.outstanding > 0 || operation.has_lent()) return;
  const auto kept = kept_.find(&operation);
  actions_.memory.push_back(kept->second);
  release(operation);
  kept_.erase(kept);
}

template <typename Change>
void Zombies::free_if(Change is_changed) {
  for (auto entry = kept_.begin(); entry != kept_.end();) {
    const OperationPtr operation = (entry++)->second;
    if (!is_changed(*operation) || operation->outstanding > 0 || operation->has_lent()) continue;
    actions_.memory.push_back(operation);
    release(*operation);
    kept_.erase(operation.get());
  }
}

void Zombies::give_back(uint32_t group, int borrower) {
  free_if([&](RunningOperation& operation) {
    return operation.group_number == group && operation.give_back(borrower);
  });
}

void Zombies::look_for_the_dead(SteadyNanos now) {
  next_look_ = SteadyNanos::max();
  free_if([](RunningOperation& operation) { return operation.give_back_of_the_dead(); });
  const auto lends = [](const auto& entry) { return entry.second->has_lent(); };
  if (std::ranges::any_of(kept_, lends)) next_look_ = now + PeerLiveness::kGrace;
}

void Zombies::close() {
  for (const auto& [key, operation] : kept_) {
    if (operation->has_lent()) {
      keep_for_ever(operation);
      continue;
    }
    actions_.memory.push_back(operation);
    release(*operation);
  }
  kept_.clear();
}

void Zombies::release(RunningOperation& operation) {
  std::shared_ptr<void>& memory =
      operation.is_point_to_point ? operation.point_to_point.keep_alive : operation.spec.keep_alive;
  // Not `memory != nullptr`: an owner of something else may hold a null pointer.
  if (memory.use_count() > 0) {
    // Without memory for the list it stays here: it must not end under the lock.
    actions_.memory.push_back(memory);
    memory.reset();
  }
  scratch_.give_back(std::exchange(operation.scratch, {}));
  operation.filled.clear();
  // Programs keep handles of many operations.
  for (HeaderRound& round : operation.rounds) round.memory.reset();
  operation.explaining_rounds.reset();
}

}  // namespace meshrun::ucx
