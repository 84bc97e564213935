#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "c10/util/Exception.h"
#include "parallel/base/callback_threads.h"
#include "parallel/base/collective_errors.h"
#include "parallel/manager/distributed_manager_state.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using std::chrono::milliseconds;

// How long cleanup waits for collectives in flight to notice that a peer is gone.
constexpr milliseconds kReleaseGrace(5000);
constexpr milliseconds kLastCallbacks(1000);

// How long rank 0 stays for ranks that are behind, and the key by which they count themselves out.
constexpr milliseconds kLeaveTogether(3000);
constexpr const char* kLeft = "left";

// Only some errors mean that a peer is gone: ranks may also have called something else than
// cleanup.
void warn_of_barrier(const std::exception& error) {
  const auto* const ours = dynamic_cast<const c10::Error*>(&error);
  const bool is_gone = dynamic_cast<const PeerLeftError*>(&error) != nullptr ||
                       dynamic_cast<const PeerLostError*>(&error) != nullptr;
  TORCH_WARN("cleanup(): the barrier failed", is_gone ? ", because a peer is gone: " : ": ",
             ours == nullptr ? error.what() : ours->what_without_backtrace());
}

// Lets the groups go on another thread: it waits for collectives in flight, and one whose peer
// hangs without dying may wait for long. Gloo waits in its destructor and cannot be told to stop.
void release_groups(std::vector<ProcessGroupPtr> groups, const std::string& backend) {
  if (groups.empty()) return;
  std::promise<void> released;
  std::future<void> done = released.get_future();
  const bool can_abort = backend != "gloo";
  std::vector<ProcessGroupPtr> to_abort;
  if (can_abort) to_abort = groups;
  std::thread([groups = std::move(groups), can_abort, released = std::move(released)]() mutable {
    for (ProcessGroupPtr& group : groups) {
      try {
        if (can_abort) group->shutdown();
        group.reset();
      } catch (const std::exception& error) {
        TORCH_WARN("a process group did not close cleanly: ", error.what());
      }
    }
    released.set_value();
  }).detach();
  if (done.wait_for(kReleaseGrace) == std::future_status::ready) return;
  TORCH_WARN("collectives are still in flight ", kReleaseGrace.count(), " ms after cleanup(); ",
             can_abort ? "they are aborted" : "their process groups are left to end by themselves");
  for (const ProcessGroupPtr& group : to_abort) group->abort();
  if (can_abort) done.wait_for(kReleaseGrace);
}

}  // namespace

bool DistributedManager::State::store_is_ours() const {
  return has_met && !world.agent && !world.store_is_hosted && world.world_size > 1;
}

bool DistributedManager::State::has_failed_group() const {
  if (engine == nullptr) return false;
  const auto backend = groups->group(std::nullopt)->getBackend(c10::DeviceType::CPU);
  return backend->getError() != c10d::ErrorType::SUCCESS;
}

void DistributedManager::State::wait_for_others_to_leave() const {
  if (world.rank != 0 || !store_is_ours()) return;
  const auto deadline = std::chrono::steady_clock::now() + kLeaveTogether;
  try {
    while (world.store->add(kLeft, 0) + 1 < world.world_size && !has_failed_group() &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(2));
    }
  } catch (const std::exception&) {
    // There is nothing to stay for.
  }
}

void DistributedManager::State::say_that_it_left() const {
  if (world.rank == 0 || !store_is_ours()) return;
  try {
    world.store->add(kLeft, 1);
  } catch (const std::exception&) {
    // Rank 0 went first.
  }
}

DistributedManager::~DistributedManager() {
  if (state_->is_forked()) {
    // The groups, the store and the line to the daemon are the parent's: never released here.
    static_cast<void>(state_.release());
    return;
  }
  state_->wait_for_others_to_leave();
  // Groups before the store that they met at, and the store before the line to the daemon.
  std::vector<ProcessGroupPtr> groups;
  for (const auto& weak : state_->unnamed) {
    if (ProcessGroupPtr group = weak.lock()) groups.push_back(std::move(group));
  }
  for (const auto& last : std::exchange(state_->at_cleanup, {})) last();
  for (ProcessGroupPtr& group : state_->groups->release()) groups.push_back(std::move(group));
  release_groups(std::move(groups), state_->backend);
  // Callbacks of futures must not run while the program ends.
  CallbackTurn::await_all(std::chrono::steady_clock::now() + kLastCallbacks);
  state_->groups.reset();
  state_->engine.reset();
  for (const auto& weak : state_->stores) {
    if (const auto part = weak.lock()) part->end();
  }
  state_->say_that_it_left();
  state_->world.store.reset();
}

void DistributedManager::cleanup(BoolArgument barrier) {
  if (!State::instance()) return;
  if (barrier && State::instance()->world_size() > 1 && !State::instance()->state_->is_forked()) {
    try {
      State::instance()->world()->barrier()->wait();
    } catch (const std::exception& error) {  // Gloo has exceptions of its own
      warn_of_barrier(error);
    }
  }
  State::instance().reset();
}

void DistributedManager::at_cleanup(std::function<void()> last) {
  const std::lock_guard lock(state_->unnamed_mutex);
  state_->at_cleanup.push_back(std::move(last));
}

}  // namespace meshrun
