#include "worker/inventory/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>
#include <string>

#include "core/log.h"
#include "worker/inventory/core_topology.h"

namespace meshrun::worker {
namespace {

// The part of nvml.h that is used here; its interface is stable.
using Device = struct nvmlDevice_st*;
struct Memory {
  unsigned long long total, free, used;
};
struct PciInfo {
  char legacy_address[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char address[32];
};
constexpr int kSuccess = 0;

template <typename Function>
Function Symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library, name));
}

}  // namespace

std::vector<v1::Gpu> ListGpus() {
  std::vector<v1::Gpu> gpus;
  const std::unique_ptr<void, int (*)(void*)> library(
      ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL),
      [](void* l) { return l ? ::dlclose(l) : 0; });
  if (library == nullptr) return gpus;
  void* const l = library.get();
  const auto init = Symbol<int (*)()>(l, "nvmlInit_v2");
  const auto shutdown = Symbol<int (*)()>(l, "nvmlShutdown");
  const auto count_devices = Symbol<int (*)(unsigned*)>(l, "nvmlDeviceGetCount_v2");
  const auto handle = Symbol<int (*)(unsigned, Device*)>(l, "nvmlDeviceGetHandleByIndex_v2");
  const auto uuid = Symbol<int (*)(Device, char*, unsigned)>(l, "nvmlDeviceGetUUID");
  const auto name = Symbol<int (*)(Device, char*, unsigned)>(l, "nvmlDeviceGetName");
  const auto memory = Symbol<int (*)(Device, Memory*)>(l, "nvmlDeviceGetMemoryInfo");
  const auto minor = Symbol<int (*)(Device, unsigned*)>(l, "nvmlDeviceGetMinorNumber");
  const auto pci = Symbol<int (*)(Device, PciInfo*)>(l, "nvmlDeviceGetPciInfo_v3");
  if (!init || !shutdown || !count_devices || !handle || !uuid || !name || !memory) {
    log::Warning("libnvidia-ml.so.1 lacks a function");
    return gpus;
  }
  if (const int error = init(); error != kSuccess) {
    log::Warning("the NVIDIA driver does not answer", {{"nvml_error", error}});
    return gpus;
  }
  unsigned count = 0;
  if (count_devices(&count) != kSuccess) count = 0;
  for (unsigned i = 0; i < count; ++i) {
    Device device = nullptr;
    char text[96] = {};
    Memory bytes = {};
    if (handle(i, &device) != kSuccess) {
      log::Warning("a GPU does not answer", {{"index", i}});
      continue;
    }
    v1::Gpu& gpu = gpus.emplace_back();
    gpu.set_index(i);
    if (uuid(device, text, sizeof(text)) == kSuccess) gpu.set_uuid(text);
    if (name(device, text, sizeof(text)) == kSuccess) gpu.set_model(text);
    if (memory(device, &bytes) == kSuccess) gpu.set_memory_bytes(bytes.total);
    unsigned number = 0;
    if (minor && minor(device, &number) == kSuccess) gpu.set_minor(number);
    PciInfo place = {};
    if (pci && pci(device, &place) == kSuccess) {
      const std::string address =
          fmt::format("{:04x}:{:02x}:{:02x}.0", place.domain, place.bus, place.device);
      if (const auto node = NumaNodeOfDevice(address)) {
        gpu.set_numa_node(static_cast<uint32_t>(*node));
      }
    }
  }
  shutdown();
  return gpus;
}

}  // namespace meshrun::worker
