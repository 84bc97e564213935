// What operations ask of others, and what they end with: collected under the lock and run without
// it. Also the breakdown of the engine, which runs all that is left.
#include <algorithm>
#include <iterator>
#include <utility>

#include "core/log.h"
#include "fmt/format.h"
#include "parallel/comm/ucx/engine/execution/engine_impl.h"

namespace meshrun::ucx {
namespace {

thread_local int running = 0;

}  // namespace

void Engine::Impl::tell_under_way() {
  if (watch_ == nullptr) return;
  const bool any = !is_broken_ && executor_->has_unfinished();
  if (std::exchange(told_any_, any) == any) return;
  // An operation begins at a time that the executor has just read.
  watch_->under_way(any, any ? executor_->now() : clock_.SteadyNow(), executor_->sent_bytes());
}

void Engine::Impl::defer() {
  tell_under_way();
  const size_t ended = deferred_.finished.size();
  deferred_.append(executor_->take());
  has_deferred_ = has_deferred_ || !deferred_.empty();
  if (deferred_.finished.size() > ended) callers_cv_.NotifyAll();
  notice();
}

bool Engine::Impl::has_actions() const {
  return !is_broken_ && (has_deferred_ || executor_->has_actions());
}

Actions Engine::Impl::collect() {
  tell_under_way();
  if (!has_actions()) return {};
  Actions actions = executor_->take();
  const bool is_whole = changes([&]() MESHRUN_REQUIRES(mu_) {
    if (!actions.finished.empty() && parked_callers_ > 0) callers_cv_.NotifyAll();
    // Bytes of operations that have ended beside others, or within their submit.
    if (!actions.finished.empty() && watch_ != nullptr)
      watch_->under_way(told_any_, executor_->now(), executor_->sent_bytes());
    if (std::exchange(has_deferred_, false)) actions.append(deferred_.take());
    if (actions.seldom != nullptr) {
      std::vector<Actions::LookUp>& look_ups = actions.seldom->look_ups;
      for (Actions::LookUp& look_up : std::exchange(look_ups, {})) {
        const auto group = groups_.find(look_up.group);
        if (group == groups_.end()) continue;
        look_up.book = group->second.book;
        look_ups.push_back(std::move(look_up));
        ++group->second.look_ups;
      }
    }
    for (const std::shared_ptr<Operation>& operation : actions.finished) {
      if (operation->failure()) sleeps_left_ = kSleepsAfterFailure;
      const auto found = callbacks_.find(operation.get());
      if (found == callbacks_.end()) continue;
      std::ranges::move(found->second, std::back_inserter(actions.make_seldom().callbacks));
      callbacks_.erase(found);
    }
  });
  // Nothing of it may end here, under the lock.
  if (!is_whole) lost_ = std::move(actions);
  return is_whole ? std::move(actions) : Actions();
}

void Engine::Impl::break_down(const char* what) noexcept {
  if (std::exchange(is_broken_, true)) return;
  has_broken_.store(true, std::memory_order_relaxed);
  try {
    why_broken_ = fmt::format(
        "{}: this process has ended all its operations on ucx, and cannot begin others", what);
    executor_->give_up(why_broken_);
    if (caller_sleeps_ || thread_sleeps_) executor_->transport().wake();
  } catch (...) {
    // Whoever waits looks at is_broken_.
  }
  tell_under_way();
  thread_rest_ = Rest::kNone;
  callers_cv_.NotifyAll();
  thread_cv_.NotifyOne();
}

std::optional<std::string> Engine::Impl::why_broken() {
  if (!has_broken_.load(std::memory_order_relaxed)) return std::nullopt;
  const Lock lock(*this);
  if (!is_broken_) return std::nullopt;
  return why_broken_;
}

bool Engine::Impl::is_running() { return running > 0; }

void Engine::Impl::run(Actions actions) {
  if (actions.empty()) return;
  ++running;
  Actions::Seldom none;
  Actions::Seldom& seldom = actions.seldom == nullptr ? none : *actions.seldom;
  for (const Actions::LookUp& look_up : seldom.look_ups) {
    try {
      look_up.book->look_up(look_up.ranks,
                            [this, group = look_up.group](
                                int rank, std::optional<AddressRecord> record,
                                const std::string& reason) { found(group, rank, record, reason); });
    } catch (const std::exception& error) {
      const Lock lock(*this);
      break_down(error.what());
    }
    const Lock lock(*this);
    --groups_[look_up.group].look_ups;
    look_ups_cv_.NotifyAll();
  }
  for (const std::string& json : seldom.dumps) write_dump(json);
  actions.memory.clear();
  // What an operation holds of its caller's may end with it.
  actions.finished.clear();
  for (Callback& callback : seldom.callbacks) call(callback);
  --running;
}

void Engine::Impl::run_what_is_left() {
  Actions lost = lost_.take();
  auto callbacks = std::exchange(callbacks_, {});
  const Gap gap(*this);
  run(std::move(lost));
  ++running;
  for (auto& [operation, of_it] : callbacks) {
    for (Callback& callback : of_it) call(callback);
  }
  --running;
}

void Engine::Impl::write_dump(const std::string& json) {
  try {
    if (dump_) {
      dump_(json);
    } else {
      log::Warning("flight record of a group that failed", {{"record", json}});
    }
  } catch (const std::exception&) {
    // It is of the past; memory for it there is none.
  }
}

void Engine::Impl::call(Callback& callback) {
  try {
    std::exchange(callback, nullptr)();
  } catch (const std::exception& error) {
    log::Error("a callback of an operation has thrown", {{"error", error.what()}});
  }
}

}  // namespace meshrun::ucx
