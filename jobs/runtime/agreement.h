// What all ranks must see alike between two steps: the loss, and whether to stop.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace meshrun::jobs {

// Steps between two agreements: a small share of a second.
inline constexpr int64_t kAgreeEvery = 10;

// What a rank was asked for.
struct Asked {
  bool stop = false;
  // The world changes: the ranks leave it after the same step, with a checkpoint if `save`.
  bool stand_still = false;
  bool save = false;
};

struct Agreement {
  // The mean over the ranks.
  double loss = 0;
  // Some rank was.
  Asked asked;
};

// Collective. `loss` is this rank's, a scalar.
Agreement agree(c10d::ProcessGroup& group, const at::Tensor& loss, const Asked& asked);

}  // namespace meshrun::jobs
