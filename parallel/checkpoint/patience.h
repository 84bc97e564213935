// Work of every rank that may take long, such as a disk's, while no rank waits for another one in a
// collective: all ranks meet in short ones until all have done theirs.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace meshrun::detail {

// Collective over `group`. Returns when `is_done`, which waits at most as long as it is told, has
// said so on all ranks. Raises the errors of collectives: a lost rank is one.
void await_all(c10d::ProcessGroup& group, c10::Device device,
               const std::function<bool(std::chrono::milliseconds most)>& is_done);

// Collective over `group`: runs `work` on a thread of its own. What it raises is this rank's.
// If a collective fails meanwhile, `work` is still waited for.
void run_patiently(c10d::ProcessGroup& group, c10::Device device,
                   const std::function<void()>& work);

}  // namespace meshrun::detail
