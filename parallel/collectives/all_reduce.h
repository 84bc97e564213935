// c10d's all-reduce as parallel/collectives and parallel/nn call it: 16-bit floats are added in
// float32 on every backend, AVG works on every backend, and a wrong argument on one rank is an
// error on all.
//
//   ucx          does all of it itself
//   any other    16-bit floats travel as float32, AVG is SUM and a division, complex numbers are
//                pairs. Headers are compared over the group's ucx backend for the CPU with
//                MESHRUN_CHECK_COLLECTIVES=1; else a `problem` is raised here alone
//
// CollectiveSpec: `words` is used in errors; on ucx an `agreed` other than 0 costs one more header
// check. With `use_fp32` false, 16-bit floats travel as they are, and backends may add them in that
// type. Kind, cuts, `requires_grad` and `fill` are not used.
//
// Internal. Not differentiable: mappings.h is.
// Threads and order: those of c10d::Backend. Errors: parallel/base/collective_errors.h, from wait()
// or from the call; what another backend throws.
#pragma once

#include <cstdint>
#include <string>

#include "ATen/core/Tensor.h"
#include "c10/core/DeviceType.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/comm/interface/v_collectives.h"
#include "torch/csrc/distributed/c10d/Types.hpp"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace c10d {
class ProcessGroup;
}

namespace meshrun::detail {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

// Holds the tensors.
class PendingAllReduce {
 public:
  PendingAllReduce() = default;
  PendingAllReduce(PendingAllReduce&&) = default;
  PendingAllReduce& operator=(PendingAllReduce&&) = default;

  bool is_completed() const { return !work_ || work_->isCompleted(); }
  // The tensor that was given, reduced; the same one when called again.
  at::Tensor wait();
  const c10::intrusive_ptr<c10d::Work>& work() const { return work_; }

 private:
  friend PendingAllReduce all_reduce(const ProcessGroupPtr&, const at::Tensor&,
                                     c10d::ReduceOp::RedOpType, CollectiveSpec);

  c10::intrusive_ptr<c10d::Work> work_;
  at::Tensor tensor_;
  at::Tensor wire_;  // what travels, where it is not `tensor_`
  int64_t divisor_ = 1;
};

// In place. `tensor`: dense, of the caller's own memory, without a gradient.
PendingAllReduce all_reduce(const ProcessGroupPtr& group, const at::Tensor& tensor,
                            c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM,
                            CollectiveSpec spec = {});

// Takes part in whatever collective the others call, with `problem` (not empty), and raises it.
[[noreturn]] void raise_on_all_ranks(const ProcessGroupPtr& group, c10::DeviceType device,
                                     const std::string& problem);

}  // namespace meshrun::detail
