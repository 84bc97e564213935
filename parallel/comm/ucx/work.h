// The c10d::Work of an operation of the ucx engine, or of several that were started together.
//
// wait() moves them forward itself, on the caller's thread. getFuture() hands them to the progress
// thread, since ivalue::Future's own wait cannot: c10d::Reducer uses that. A Work that is dropped
// unfinished is handed to it too, if it has still something to do. The future is made when asked
// for; its callbacks run on threads of their own, those of one group's collectives in the order of
// the calls (parallel/base/callback_threads.h).
//
// Threads: any. Errors: wait() and the future throw those of collective_errors.h; a wait with a
// timeout of its own that passes throws CollectiveTimeoutError and leaves the operations under way.
// In a child of fork() its parent's unfinished Work is complete, and wait() raises
// GroupAbortedError.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ATen/core/ivalue.h"
#include "absl/container/inlined_vector.h"
#include "parallel/comm/ucx/engine/execution/engine.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace meshrun {

class UcxWork : public c10d::Work {
 public:
  using Operations = absl::InlinedVector<std::shared_ptr<ucx::Operation>, 1>;
  using Results = absl::InlinedVector<at::Tensor, 1>;

  // Nothing is started yet: until start(), wait() is an error (a call between startCoalescing and
  // endCoalescing).
  UcxWork(std::shared_ptr<ucx::Group> group, c10d::OpType type);
  ~UcxWork() override;

  // Once. `finish` runs before the operations count as complete: copies results into tensors that
  // could not be written in place. `results` are what result() and the future give. `problem`: what
  // of it could not be submitted, which is an error when the rest is done.
  void start(Operations operations, Results results, std::function<void()> finish = nullptr,
             const std::optional<ucx::Failure>& problem = std::nullopt);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override {}
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // Ends the group: one operation alone cannot be taken back from the other ranks.
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override;

 private:
  struct State;
  // Until `deadline`, which `timeout` has led to.
  void wait_for(std::chrono::milliseconds timeout, std::chrono::steady_clock::time_point deadline);
  // Raises why one of the operations will never be done, if one will not.
  void throw_lost() const;

  const std::shared_ptr<ucx::Group> group_;
  const std::shared_ptr<State> state_;  // outlives the Work where a callback is due
};

}  // namespace meshrun
