#include "worker/inventory/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>
#include <utility>

#include "core/log.h"
#include "worker/inventory/core_topology.h"

namespace meshrun::worker {
// The part of nvml.h that is used here; its interface is stable.
namespace nvml {

using Device = struct nvmlDevice_st*;
using EventSet = struct nvmlEventSet_st*;
struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};
struct EventData {
  Device device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
struct PciInfo {
  char legacy_address[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char address[32];
};

}  // namespace nvml

namespace {

using nvml::Device;
using nvml::EventData;
using nvml::EventSet;
using nvml::Memory;
using nvml::PciInfo;
using nvml::Utilization;

constexpr int kSuccess = 0;
constexpr unsigned kGpuSensor = 0;
constexpr int kUncorrected = 1;
constexpr int kSinceDriver = 0;
constexpr unsigned long long kXidEvent = 8;

}  // namespace

struct Nvml::Library {
  explicit Library(void* opened) : handle(opened) {}
  ~Library() {
    if (events != nullptr && event_set_free) event_set_free(events);
    if (initialized) shutdown();
    ::dlclose(handle);
  }

  template <typename... Arguments>
  void Find(int (*&function)(Arguments...), const char* name) {
    function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(handle, name));
  }

  void* const handle;
  bool initialized = false;
  struct Gpu {
    uint32_t index = 0;
    Device device = nullptr;
    // Asked for once, since a GPU that is lost does not tell it any more, and it is a label of
    // metrics. Empty: it has not told it.
    std::string uuid;
  };
  std::vector<Gpu> gpus;
  EventSet events = nullptr;

  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, Device*) = nullptr;
  int (*uuid)(Device, char*, unsigned) = nullptr;
  int (*name)(Device, char*, unsigned) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  // Older drivers lack some of these.
  int (*minor)(Device, unsigned*) = nullptr;
  int (*pci)(Device, PciInfo*) = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*temperature)(Device, unsigned, unsigned*) = nullptr;
  int (*ecc_errors)(Device, int, int, unsigned long long*) = nullptr;
  int (*event_set_create)(EventSet*) = nullptr;
  int (*register_events)(Device, unsigned long long, EventSet) = nullptr;
  int (*event_set_wait)(EventSet, EventData*, unsigned) = nullptr;
  int (*event_set_free)(EventSet) = nullptr;
};

std::unique_ptr<Nvml> Nvml::Open() {
  void* const handle = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  auto library = std::make_unique<Library>(handle);
  Library& l = *library;
  l.Find(l.init, "nvmlInit_v2");
  l.Find(l.shutdown, "nvmlShutdown");
  l.Find(l.count, "nvmlDeviceGetCount_v2");
  l.Find(l.device, "nvmlDeviceGetHandleByIndex_v2");
  l.Find(l.uuid, "nvmlDeviceGetUUID");
  l.Find(l.name, "nvmlDeviceGetName");
  l.Find(l.memory, "nvmlDeviceGetMemoryInfo");
  l.Find(l.minor, "nvmlDeviceGetMinorNumber");
  l.Find(l.pci, "nvmlDeviceGetPciInfo_v3");
  l.Find(l.utilization, "nvmlDeviceGetUtilizationRates");
  l.Find(l.temperature, "nvmlDeviceGetTemperature");
  l.Find(l.ecc_errors, "nvmlDeviceGetTotalEccErrors");
  l.Find(l.event_set_create, "nvmlEventSetCreate");
  l.Find(l.register_events, "nvmlDeviceRegisterEvents");
  l.Find(l.event_set_wait, "nvmlEventSetWait_v2");
  l.Find(l.event_set_free, "nvmlEventSetFree");
  if (!l.init || !l.shutdown || !l.count || !l.device || !l.uuid || !l.name || !l.memory) {
    log::Warning("libnvidia-ml.so.1 lacks a function");
    return nullptr;
  }
  if (const int error = l.init(); error != kSuccess) {
    log::Warning("the NVIDIA driver does not answer", {{"nvml_error", error}});
    return nullptr;
  }
  l.initialized = true;
  unsigned count = 0;
  if (l.count(&count) != kSuccess) count = 0;
  for (unsigned i = 0; i < count; ++i) {
    Device device = nullptr;
    if (l.device(i, &device) != kSuccess) {
      log::Warning("a GPU does not answer", {{"index", i}});
      continue;
    }
    char text[96] = {};
    const bool told = l.uuid(device, text, sizeof(text)) == kSuccess;
    l.gpus.push_back({i, device, told ? text : ""});
  }
  return std::unique_ptr<Nvml>(new Nvml(std::move(library)));
}

Nvml::Nvml(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Nvml::~Nvml() = default;

std::vector<v1::Gpu> Nvml::List() const {
  const Library& l = *library_;
  std::vector<v1::Gpu> gpus;
  for (const auto& [index, device, uuid] : l.gpus) {
    char text[96] = {};
    Memory bytes = {};
    v1::Gpu& gpu = gpus.emplace_back();
    gpu.set_index(index);
    gpu.set_uuid(uuid);
    if (l.name(device, text, sizeof(text)) == kSuccess) gpu.set_model(text);
    if (l.memory(device, &bytes) == kSuccess) gpu.set_memory_bytes(bytes.total);
    unsigned number = 0;
    if (l.minor && l.minor(device, &number) == kSuccess) gpu.set_minor(number);
    PciInfo place = {};
    if (l.pci && l.pci(device, &place) == kSuccess) {
      const std::string address =
          fmt::format("{:04x}:{:02x}:{:02x}.0", place.domain, place.bus, place.device);
      if (const auto node = NumaNodeOfDevice(address)) {
        gpu.set_numa_node(static_cast<uint32_t>(*node));
      }
    }
  }
  return gpus;
}

std::vector<GpuReading> Nvml::Read() const {
  const Library& l = *library_;
  std::vector<GpuReading> readings;
  for (const auto& [index, device, uuid] : l.gpus) {
    GpuReading& out = readings.emplace_back();
    out.index = index;
    out.uuid = uuid;
    Utilization used = {};
    if (l.utilization && l.utilization(device, &used) == kSuccess) {
      out.busy = used.gpu / 100.0;
      out.memory_busy = used.memory / 100.0;
    }
    Memory bytes = {};
    if (l.memory(device, &bytes) == kSuccess) {
      out.memory_used_bytes = bytes.used;
      out.memory_bytes = bytes.total;
    }
    unsigned celsius = 0;
    if (l.temperature && l.temperature(device, kGpuSensor, &celsius) == kSuccess) {
      out.celsius = celsius;
    }
    unsigned long long errors = 0;
    if (l.ecc_errors && l.ecc_errors(device, kUncorrected, kSinceDriver, &errors) == kSuccess) {
      out.uncorrected_errors = errors;
    }
  }
  return readings;
}

bool Nvml::TellsXids() const {
  const Library& l = *library_;
  return l.event_set_create && l.register_events && l.event_set_wait && l.event_set_free;
}

std::optional<GpuXid> Nvml::AwaitXid(std::chrono::milliseconds wait) {
  Library& l = *library_;
  if (!TellsXids()) return std::nullopt;
  if (l.events == nullptr) {
    if (l.event_set_create(&l.events) != kSuccess) return std::nullopt;
    for (const Library::Gpu& gpu : l.gpus) l.register_events(gpu.device, kXidEvent, l.events);
  }
  EventData event = {};
  if (l.event_set_wait(l.events, &event, static_cast<unsigned>(wait.count())) != kSuccess ||
      event.type != kXidEvent) {
    return std::nullopt;
  }
  for (const Library::Gpu& gpu : l.gpus) {
    if (gpu.device == event.device) return GpuXid{gpu.index, event.data};
  }
  return std::nullopt;
}

std::vector<v1::Gpu> ListGpus() {
  const std::unique_ptr<Nvml> nvml = Nvml::Open();
  return nvml == nullptr ? std::vector<v1::Gpu>() : nvml->List();
}

}  // namespace meshrun::worker
