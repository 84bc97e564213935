#include "worker/inventory/inventory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string_view>
#include <vector>

#include "core/os/cores.h"
#include "core/os/files.h"
#include "core/parse_integer.h"
#include "core/status.h"
#include "worker/inventory/nvml.h"

namespace meshrun::worker {
namespace {

constexpr uint32_t kLeastSlots = 8;

// A number in a file, 0 when there is none ("max", no such file).
double NumberIn(const char* path) {
  const auto content = os::ReadFile(path);
  return content.ok() ? std::strtod(content->c_str(), nullptr) : 0;
}

// By its index or (the beginning of) its UUID.
bool IsNamed(const v1::Gpu& gpu, std::string_view name) {
  return name == std::to_string(gpu.index()) ||
         (name.starts_with("GPU-") && gpu.uuid().starts_with(name));
}

}  // namespace

uint64_t MemoryBytes() {
  uint64_t bytes = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  for (const char* const path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    if (const double limit = NumberIn(path); limit > 0 && limit < static_cast<double>(bytes)) {
      bytes = static_cast<uint64_t>(limit);
    }
  }
  return bytes;
}

std::vector<uint32_t> NvidiaMinors() {
  constexpr std::string_view kPrefix = "nvidia";
  std::vector<uint32_t> minors;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    if (const auto minor = ParseInteger<uint32_t>(std::string_view(name).substr(kPrefix.size())))
      minors.push_back(*minor);
  }
  std::sort(minors.begin(), minors.end());
  return minors;
}

absl::StatusOr<v1::Resources> TakeInventory(const InventoryOverrides& overrides) {
  v1::Resources resources;
  resources.set_cores(overrides.cores.value_or(os::WholeCores()));
  resources.set_slots(overrides.slots.value_or(std::max(resources.cores(), kLeastSlots)));
  resources.set_memory_bytes(overrides.memory_bytes.value_or(MemoryBytes()));
  resources.set_ranks(overrides.ranks);
  std::vector<v1::Gpu> gpus = ListGpus();
  if (overrides.visible_devices) gpus = VisibleGpus(gpus, *overrides.visible_devices);
  if (!overrides.gpu_ids.empty()) {
    MESHRUN_ASSIGN_OR_RETURN(gpus, ChooseGpus(gpus, overrides.gpu_ids));
  }
  for (v1::Gpu& gpu : gpus) *resources.add_gpus() = std::move(gpu);
  return resources;
}

std::vector<v1::Gpu> VisibleGpus(const std::vector<v1::Gpu>& gpus, const std::string& visible) {
  std::vector<v1::Gpu> out;
  std::string_view rest = visible;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view name = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const auto gpu = std::find_if(gpus.begin(), gpus.end(),
                                  [name](const v1::Gpu& g) { return IsNamed(g, name); });
    // As CUDA does: the first name that is not a device ends the list.
    if (gpu == gpus.end()) break;
    out.push_back(*gpu);
  }
  return out;
}

absl::StatusOr<std::vector<v1::Gpu>> ChooseGpus(const std::vector<v1::Gpu>& gpus,
                                                const std::vector<std::string>& ids) {
  std::vector<v1::Gpu> chosen;
  std::vector<uint32_t> there;
  for (const v1::Gpu& gpu : gpus) there.push_back(gpu.index());
  for (const std::string& id : ids) {
    const auto gpu =
        std::find_if(gpus.begin(), gpus.end(), [&id](const v1::Gpu& g) { return IsNamed(g, id); });
    const std::string flag = fmt::format("--gpu-ids {}", fmt::join(ids, ","));
    if (gpu == gpus.end()) {
      return absl::InvalidArgumentError(
          there.empty()
              ? fmt::format("{}: this host has no GPU, or CUDA_VISIBLE_DEVICES hides them", flag)
              : fmt::format("{}: there is no GPU {} here, or CUDA_VISIBLE_DEVICES hides it: write "
                            "of {}",
                            flag, id, fmt::join(there, ",")));
    }
    for (const v1::Gpu& earlier : chosen) {
      if (earlier.index() != gpu->index()) continue;
      return absl::InvalidArgumentError(fmt::format("{} names GPU {} twice", flag, gpu->index()));
    }
    chosen.push_back(*gpu);
  }
  return chosen;
}

std::map<uint32_t, std::string> NamesOfGpus(const v1::Resources& resources) {
  std::map<uint32_t, std::string> names;
  const auto& limits = resources.limits();
  if (std::find(limits.begin(), limits.end(), "devices") == limits.end()) return names;
  for (const v1::Gpu& gpu : resources.gpus()) {
    if (gpu.uuid().empty()) return {};
    names[gpu.index()] = gpu.uuid();
  }
  return names;
}

}  // namespace meshrun::worker
