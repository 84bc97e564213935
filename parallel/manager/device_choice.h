// Which backend and device a rank uses. Threads: any. Errors: BackendError.
#pragma once

#include <optional>
#include <string>

#include "c10/core/Device.h"

namespace meshrun {

// GPUs that this process sees; 0 where libtorch_cuda is not linked in.
int gpu_count();

// `asked`, or MESHRUN_BACKEND, or "nccl" where there is a GPU and NCCL is linked in, else "ucx".
// What cannot work is an error that says what to pass.
std::string choose_backend(const std::optional<std::string>& asked, int gpus);

// The rank's GPU, made the current one, or the CPU. `assigned` is its index where the daemon gave
// the rank a GPU (assigned_gpu()); else the ranks of a host take turns.
c10::Device choose_device(const std::string& backend, int world_size, int local_rank, int gpus,
                          std::optional<int> assigned);

}  // namespace meshrun
