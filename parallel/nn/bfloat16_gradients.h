// The communication hook of DistributedDataParallelOptions::bfloat16_gradients.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace meshrun::detail {

// Averages a bucket of float32. Each rank divides by the group's size and rounds. The sum is taken
// in bfloat16 (ucx adds in float32, and rounds once on each host and once at the end). Then the
// gradients are float32 again. Sparse gradients travel as they are.
std::unique_ptr<c10d::CommHookInterface> make_bfloat16_hook(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace meshrun::detail
