// Work of one rank, or of each, that ends alike on all ranks of a group.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace meshrun::detail {

// Collective over `group`: runs `read`, which may take as long as a disk does. What it raises on a
// rank is raised on all: DamagedCheckpoint as such, anything else as std::runtime_error.
void read_together(c10d::ProcessGroup& group, c10::Device device,
                   const std::function<void()>& read);

// Collective over `group`: runs `work`, which is short. What it raises on a rank is raised there as
// it is, and on the others as CheckpointFileError.
void do_together(c10d::ProcessGroup& group, c10::Device device, const std::function<void()>& work);

}  // namespace meshrun::detail
