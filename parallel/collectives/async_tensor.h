// The result of an asynchronous collective: a tensor that is being written, and the Work that says
// when it is.
//
//   AsyncTensor gathered = all_gather_v_async(x, sizes);
//   ...                                   // other work
//   at::Tensor y = gathered.wait();
//
// The tensor's autograd node is made when the collective is called, not by wait(): so ranks that
// call in one order have their graphs in one order. Its backward is a synchronous collective.
// The memory of inputs and result is held until the operation is done, also where all handles are
// dropped before. On a GPU wait() makes the current stream wait, not the host.
//
// Copies share the operation. Threads: any, one at a time for wait(). Errors: wait() throws the
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

  // Of no operation; wait() returns an undefined tensor.
  AsyncTensor() = default;
  AsyncTensor(at::Tensor tensor, WorkPtr work)
      : tensor_(std::move(tensor)), work_(std::move(work)) {}

  // Without an error, or with one.
  bool is_completed() const { return !work_ || work_->isCompleted(); }
  // The result, with its gradient; again the same one when called again.
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
