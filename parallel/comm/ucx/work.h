// The c10d::Work of an operation of the ucx engine.
//
// wait() moves the operation forward itself, on the caller's thread. getFuture() hands it to the
// progress thread, since ivalue::Future's own wait cannot: c10d::Reducer uses that. A Work that is
// dropped unfinished is handed to it too. The future is made when asked for.
//
// Threads: any. Errors: wait() and the future throw those of collective_errors.h; a wait with a
// timeout of its own that passes throws CollectiveTimeoutError and leaves the operation under way.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "ATen/core/ivalue.h"
#include "parallel/comm/ucx/engine/engine.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace meshrun {

class UcxWork : public c10d::Work {
 public:
  // `finish` runs once before the operation counts as complete: copies results into tensors that
  // could not be written in place. `outputs` are what result() and the future give.
  UcxWork(std::shared_ptr<ucx::Group> group, std::shared_ptr<ucx::Operation> operation,
          c10d::OpType type, int rank, std::vector<at::Tensor> outputs,
          std::function<void()> finish = nullptr);
  ~UcxWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override {}
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override;

 private:
  struct Shared;  // outlives the Work where a callback is due
  const std::shared_ptr<Shared> shared_;
};

// What `failure` is thrown as.
std::exception_ptr to_exception(const ucx::Failure& failure);

}  // namespace meshrun
