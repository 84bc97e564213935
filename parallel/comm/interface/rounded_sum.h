// Sums of float16 and bfloat16 that cross between hosts in their own type.
//
// allreduce() of a backend of ours adds them in float32 and rounds once; between hosts partial sums
// then travel as float32. Gradients that were rounded anyhow need no such care: here each host's
// partial is rounded as well, and half of its bytes travel. On one host both are the same bits.
//
// Threads and order: those of c10d::Backend. Errors: collective_errors.h, from the Work.
#pragma once

#include "ATen/core/Tensor.h"
#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace c10d {
class ProcessGroup;
}

namespace meshrun {

// A backend that can.
class RoundedSum {
 public:
  virtual ~RoundedSum() = default;

  // The sum over all ranks, in place. Other types than float16 and bfloat16: as allreduce().
  virtual c10::intrusive_ptr<c10d::Work> all_reduce_rounded(const at::Tensor& tensor) = 0;
};

// Where the group's backend cannot: its allreduce(). The Work is waited for later.
c10::intrusive_ptr<c10d::Work> all_reduce_rounded(c10d::ProcessGroup& group, at::Tensor tensor);

}  // namespace meshrun
