// Which backend and device a rank uses. Threads: any. Errors: BackendError.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "c10/core/Device.h"

namespace meshrun {

// GPUs that this process sees; 0 where libtorch_cuda is not linked in.
int gpu_count();

// `asked`, else MESHRUN_BACKEND, else "nccl" if there is a GPU and NCCL is linked in, else "ucx". A
// backend that cannot work is an error that says what to pass.
std::string choose_backend(const std::optional<std::string>& asked, int gpus);

// The rank's GPU, made the current one, or the CPU. `assigned` is the index of the GPU that the
// daemon gave the rank (assigned_gpu()); without it the ranks of a host take GPUs in turn.
// `launched` as for gpu_index().
c10::Device choose_device(const std::string& backend, int world_size, int local_rank, int gpus,
                          std::optional<int> assigned, const std::vector<int>& launched = {});

}  // namespace meshrun
