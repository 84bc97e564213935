#include "parallel/manager/device_choice.h"

#include "ATen/detail/CUDAHooksInterface.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "fmt/format.h"
#include "parallel/base/errors.h"
#include "parallel/comm/process_group_factory.h"
#include "parallel/manager/environment.h"

namespace meshrun {

int gpu_count() {
  // The device guard may count wrong: where there is no GPU, torch.compile puts one there that
  // counts 8.
  return at::detail::getCUDAHooks().deviceCount();
}

std::string choose_backend(const std::optional<std::string>& asked, int gpus) {
  std::optional<std::string> named = asked ? asked : backend_of_environment();
  const std::string backend = named.value_or(gpus > 0 && has_backend("nccl") ? "nccl" : "ucx");
  const std::optional<BackendChoice> choice = parse_backend(backend);
  // Also where NCCL is not linked in: what is missing first is the GPU.
  const bool wants_gpu = choice ? !choice->cuda.empty() : backend == "nccl";
  if (wants_gpu && gpus == 0) {
    throw BackendError(fmt::format(
        "the backend \"{}\" needs a GPU, and this process sees none: pass backend \"ucx\" "
        "to initialize() or setup(), set MESHRUN_BACKEND=ucx, or "
        "check nvidia-smi and CUDA_VISIBLE_DEVICES",
        backend));
  }
  if (!choice) throw unknown_backend(backend);
  return backend;
}

c10::Device choose_device(const std::string& backend, int world_size, int local_rank, int gpus,
                          std::optional<int> assigned, const std::vector<int>& launched) {
  // Groups without a CUDA backend take CPU tensors only; a rank alone has nobody to send to.
  const std::optional<BackendChoice> choice = parse_backend(backend);
  const bool is_cpu_only = choice && choice->cuda.empty();
  if (gpus == 0 || (is_cpu_only && world_size > 1)) return c10::Device(c10::DeviceType::CPU);
  if (assigned && *assigned >= gpus) {
    throw BackendError(fmt::format(
        "the GPU of local rank {} is number {} in CUDA_VISIBLE_DEVICES, counted from 0, "
        "but this process sees only {}: compare nvidia-smi with what the daemon offers "
        "(meshrun nodes)",
        local_rank, *assigned, gpus));
  }
  const int index = gpu_index(local_rank, gpus, assigned, launched);
  const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
  c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).setDevice(device);
  return device;
}

}  // namespace meshrun
