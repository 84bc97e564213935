// The result of an asynchronous collective: a tensor that is being written, and the Work that says
// when it is.
//
//   AsyncTensor gathered = all_gather_v_async(x, sizes);
//   ...                                   // other work
//   at::Tensor y = gathered.wait();
//
// The call makes the tensor's autograd node, not wait(): ranks that call in the same order have
// their graphs in the same order. Its backward is a synchronous collective. The operation holds the
// memory of inputs and result until it is done, even after all handles are dropped. On a GPU wait()
// makes the current stream wait, not the host.
//
// Copies share the operation. Threads: any, but one at a time for wait(). Errors: wait() throws the
// Work's (parallel/base/collective_errors.h).
#pragma once

#include <utility>

#include "ATen/core/Tensor.h"
#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace meshrun {

class AsyncTensor {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Without an operation: wait() returns an undefined tensor.
  AsyncTensor() = default;
  AsyncTensor(at::Tensor tensor, WorkPtr work)
      : tensor_(std::move(tensor)), work_(std::move(work)) {}

  // With or without an error.
  bool is_completed() const { return !work_ || work_->isCompleted(); }
  // The result, with its autograd node; every call returns the same tensor.
  at::Tensor wait() {
    if (work_) work_->wait();
    return tensor_;
  }
  const WorkPtr& work() const { return work_; }

 private:
  at::Tensor tensor_;
  WorkPtr work_;
};

}  // namespace meshrun
