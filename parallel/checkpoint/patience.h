// Work of every rank that may take long, such as a disk's, while no rank waits for another one in a
// collective: all ranks meet in short ones until all have done theirs.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace meshrun::detail {

// Collective over `group`. Returns when `is_done`, which waits at most as long as it is told, has
// said so on all ranks. Raises the errors of collectives: a lost rank is one.
void await_all(c10d::ProcessGroup& group, c10::Device device,
               const std::function<bool(std::chrono::milliseconds most)>& is_done);

// The same for ranks that tell each other more than that: `report` waits at most as long as it is
// told, and gives this rank's numbers, the first of which is 1 if it has done its part, else 0.
// Until all have, `hear` gets the least of the ranks' numbers, one by one.
void meet_until_done(c10d::ProcessGroup& group, c10::Device device,
                     const std::function<std::vector<int64_t>(std::chrono::milliseconds)>& report,
                     const std::function<void(const std::vector<int64_t>& least)>& hear);

// Collective over `group`: runs `work` on a thread of its own. What it raises is this rank's.
// If a collective fails meanwhile, `work` is still waited for.
void run_patiently(c10d::ProcessGroup& group, c10::Device device,
                   const std::function<void()>& work);

}  // namespace meshrun::detail
