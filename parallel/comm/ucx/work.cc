#include "parallel/comm/ucx/work.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "c10/core/GradMode.h"
#include "core/log.h"
#include "core/mutex.h"
#include "fmt/format.h"
#include "parallel/base/callback_threads.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/interrupts.h"
#include "parallel/base/no_collectives.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/comm/interface/node_number.h"
#include "parallel/comm/ucx/failure_exception.h"

namespace meshrun {

using OperationPtr = std::shared_ptr<ucx::Operation>;

// Knows no group: the last reference to one must not go on the engine's own thread.
struct UcxWork::State {
  // Written by start(), before anybody else reads.
  Operations operations;
  Results results;

  mutable Mutex mu;
  bool is_started MESHRUN_GUARDED_BY(mu) = false;
  bool is_settled MESHRUN_GUARDED_BY(mu) = false;
  std::function<void()> finish MESHRUN_GUARDED_BY(mu);
  std::exception_ptr error MESHRUN_GUARDED_BY(mu);
  c10::intrusive_ptr<c10::ivalue::Future> future MESHRUN_GUARDED_BY(mu);
  bool is_future_done MESHRUN_GUARDED_BY(mu) = false;
  CondVar future_done;

  bool started() const {
    MutexLock lock(mu);
    return is_started;
  }
  bool is_done() const {
    return std::all_of(operations.begin(), operations.end(),
                       [](const OperationPtr& operation) { return operation->is_done(); });
  }

  // Once all operations are done: their end becomes the Work's.
  std::exception_ptr settle() MESHRUN_EXCLUDES(mu) {
    MutexLock lock(mu);
    if (std::exchange(is_settled, true)) return error;
    try {
      for (const OperationPtr& operation : operations) {
        if (error != nullptr) break;
        if (!operation->is_done()) {
          // Callbacks run without an end only where the engine has broken down.
          error = std::make_exception_ptr(TransportError(operation->name() + " never ends"));
        } else if (operation->failure()) {
          error = to_exception(*operation->failure());
        }
      }
    } catch (...) {
      // Without memory for the error: a failure all the same.
      error = std::current_exception();
    }
    const std::function<void()> copy_results = std::exchange(finish, nullptr);
    if (error != nullptr || !copy_results) return error;
    try {
      const c10::NoGradGuard no_grad;
      copy_results();
    } catch (...) {
      error = std::current_exception();
    }
    return error;
  }

  // Who has waited for the Work may read its future, if it is done by then. It is done in its turn.
  void await_future(std::chrono::steady_clock::time_point until) {
    MutexLock lock(mu);
    while (future != nullptr && !is_future_done) {
      if (!future_done.WaitUntil(mu, until)) return;
    }
  }
  void future_is_done() {
    MutexLock lock(mu);
    is_future_done = true;
    future_done.NotifyAll();
  }

  // The engine's threads let no exception through, and neither do the future's own callbacks
  // (then()); only what was added by addCallback() can throw here.
  void complete_future(c10::ivalue::Future& to) {
    // What continues may call anything, in the name of nobody who waits here by chance.
    const CallScope::Suspended outside;
    const NodeNumber::Scope of_no_node{NodeNumber()};
    const NoCollectives allowed(nullptr);
    try {
      if (const std::exception_ptr failed = settle()) {
        to.setError(failed);
      } else {
        to.markCompleted(c10::IValue(std::vector<at::Tensor>(results.begin(), results.end())));
      }
    } catch (const std::exception& thrown) {
      log::Error("a callback of a collective's future has thrown", {{"error", thrown.what()}});
      if (!to.completed()) to.setErrorIfNeeded(std::current_exception());
    }
  }
};

namespace {

// Why one of the operations will never be done; absent: all will.
std::optional<ucx::Failure> lost_one(const ucx::Group& group,
                                     const UcxWork::Operations& operations) {
  for (const OperationPtr& operation : operations) {
    if (operation->is_done()) continue;
    if (std::optional<ucx::Failure> failure = group.cannot_end(*operation)) return failure;
  }
  return std::nullopt;
}

// Messages have no sequence, and end in any order.
bool are_collectives(const UcxWork::Operations& operations) {
  return std::all_of(operations.begin(), operations.end(),
                     [](const OperationPtr& operation) { return operation->sequence() > 0; });
}

// Calls `last` when all are done, perhaps now. From now on the progress thread drives them.
void when_done(ucx::Group& group, const UcxWork::Operations& operations,
               std::function<void()> last) {
  // One more, so that it is not called in the middle.
  const auto open = std::make_shared<std::atomic<size_t>>(operations.size() + 1);
  const auto one_done = [open, last = std::move(last)] {
    if (open->fetch_sub(1) == 1) last();
  };
  for (const OperationPtr& operation : operations) group.on_done(operation, one_done);
  one_done();
}

}  // namespace

UcxWork::UcxWork(std::shared_ptr<ucx::Group> group, c10d::OpType type)
    : Work(group->config().rank, type),
      group_(std::move(group)),
      state_(std::make_shared<State>()) {}

UcxWork::~UcxWork() {
  bool has_copies;
  {
    MutexLock lock(state_->mu);
    has_copies = state_->finish != nullptr;
  }
  if (state_->is_done()) {
    if (has_copies) state_->settle();
    return;
  }
  // Nobody waits for them any more.
  if (has_copies) {
    try {
      when_done(*group_, state_->operations, [state = state_] { state->settle(); });
    } catch (const std::exception& error) {
      log::Error("results of a collective that nobody waits for were not copied",
                 {{"error", error.what()}});
    }
    return;
  }
  for (const OperationPtr& operation : state_->operations) group_->hand_over(*operation);
}

void UcxWork::start(Operations operations, Results results, std::function<void()> finish,
                    const std::optional<ucx::Failure>& problem) {
  MutexLock lock(state_->mu);
  state_->operations = std::move(operations);
  state_->results = std::move(results);
  state_->finish = std::move(finish);
  if (problem) state_->error = to_exception(*problem);
  state_->is_started = true;
}

bool UcxWork::isCompleted() {
  if (!state_->started()) return false;
  if (!state_->is_done()) group_->poll();
  // What never ends is over: wait() says why.
  if (!state_->is_done()) return lost_one(*group_, state_->operations).has_value();
  state_->settle();
  return true;
}

bool UcxWork::isSuccess() const {
  return state_->started() && state_->is_done() && state_->settle() == nullptr;
}

std::exception_ptr UcxWork::exception() const {
  if (!state_->started()) return nullptr;
  if (state_->is_done()) return state_->settle();
  const std::optional<ucx::Failure> lost = lost_one(*group_, state_->operations);
  return lost ? to_exception(*lost) : nullptr;
}

int UcxWork::sourceRank() const {
  return state_->operations.empty() ? -1 : state_->operations.front()->source_rank();
}

std::vector<at::Tensor> UcxWork::result() {
  return {state_->results.begin(), state_->results.end()};
}

bool UcxWork::wait(std::chrono::milliseconds timeout) {
  check_collectives_allowed([] { return "wait() for a collective"; });
  if (!state_->started()) {
    throw CollectiveArgumentError(
        "wait() was called on an operation that is put off: call endCoalescing() first, and wait "
        "for what it returns");
  }
  auto until = std::chrono::steady_clock::time_point::max();
  if (timeout.count() > 0) {
    until = std::chrono::steady_clock::now() + timeout;
    wait_for(timeout, until);
  } else {
    for (const OperationPtr& operation : state_->operations) {
      if (operation->is_done()) continue;
      const bool is_done = group_->wait(*operation);
      raise_interrupt();  // also of an operation that has ended since the check was asked
      if (!is_done) throw_lost();
    }
  }
  if (const std::exception_ptr error = state_->settle()) std::rethrow_exception(error);
  if (!group_->is_forked()) state_->await_future(until);
  return true;
}

void UcxWork::throw_lost() const {
  if (const std::optional<ucx::Failure> lost = lost_one(*group_, state_->operations)) {
    std::rethrow_exception(to_exception(*lost));
  }
}

void UcxWork::wait_for(std::chrono::milliseconds timeout,
                       std::chrono::steady_clock::time_point deadline) {
  for (const OperationPtr& operation : state_->operations) {
    const auto left = std::max<std::chrono::nanoseconds>(
        deadline - std::chrono::steady_clock::now(), std::chrono::nanoseconds(0));
    if (operation->is_done()) continue;
    const bool is_done = group_->wait(*operation, left);
    raise_interrupt();
    if (is_done) continue;
    throw_lost();
    throw CollectiveTimeoutError(fmt::format(
        "{} was not done within the {:g} s that wait() was given on rank {}; it goes on",
        operation->name(), static_cast<double>(timeout.count()) / 1000, group_->config().rank));
  }
}

void UcxWork::abort() {
  group_->abort(fmt::format("abort() was called on an operation of group \"{}\" on rank {}",
                            group_->config().name, group_->config().rank));
}

c10::intrusive_ptr<c10::ivalue::Future> UcxWork::getFuture() {
  if (!state_->started()) {
    throw CollectiveArgumentError(
        "getFuture() was called on an operation that is put off: call endCoalescing() first");
  }
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    MutexLock lock(state_->mu);
    if (state_->future != nullptr) return state_->future;
    future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    // Its first callback: before anybody else knows the future.
    future->addCallback([weak = std::weak_ptr<State>(state_)](c10::ivalue::Future&) {
      if (const auto state = weak.lock()) state->future_is_done();
    });
    state_->future = future;
  }
  if (const std::optional<ucx::Failure> lost = lost_one(*group_, state_->operations)) {
    future->setError(to_exception(*lost));
    return future;
  }
  const void* const order = are_collectives(state_->operations) ? group_.get() : nullptr;
  if (state_->is_done() && (order == nullptr || !CallbackTurn::has_one_before(order))) {
    state_->complete_future(*future);  // which has no callback of the program's yet
    return future;
  }
  // Callbacks may wait for other futures, and take locks that a thread holds which waits for an
  // operation: neither the progress thread nor that one runs them. They may call collectives, so
  // those of collectives run in one order on all ranks. The State is kept by the callback, the
  // future by both: it is gone when the callback has run.
  const std::shared_ptr<std::atomic<int>> running = group_->running_callbacks();
  const auto turn = std::make_shared<CallbackTurn>(order, [state = state_, future, running] {
    state->complete_future(*future);
    --*running;
  });
  when_done(*group_, state_->operations, [turn, running] {
    ++*running;
    turn->ready();
  });
  return future;
}

uint64_t UcxWork::getSequencenumber() const {
  return state_->operations.empty() ? 0 : state_->operations.front()->sequence();
}

}  // namespace meshrun
