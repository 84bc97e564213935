// What all ranks must see alike between two steps: the loss, and whether to stop.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace meshrun::jobs {

// Steps between two agreements: a small share of a second.
inline constexpr int64_t kAgreeEvery = 10;

struct Agreement {
  // The mean over the ranks.
  double loss = 0;
  // A rank was asked to stop.
  bool stop = false;
};

// Collective. `loss` is this rank's, a scalar.
Agreement agree(c10d::ProcessGroup& group, const at::Tensor& loss);

}  // namespace meshrun::jobs
