// What this host offers to ranks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "meshrun/v1/common.pb.h"

namespace meshrun::worker {

// Memory of the host, or of its cgroup where that is less.
uint64_t MemoryBytes();

struct InventoryOverrides {
  std::optional<uint32_t> cores;
  std::optional<uint32_t> slots;
  std::optional<uint64_t> memory_bytes;
  // As in Resources.
  uint32_t ranks = 0;
  // CUDA_VISIBLE_DEVICES of the daemon: the others are not offered.
  std::optional<std::string> visible_devices;
  // These alone are offered, in this order, each by its index or UUID. Empty: all.
  std::vector<std::string> gpu_ids;
};

// Slots default to the cores, but at least 8: small ranks share cores well. INVALID_ARGUMENT: a GPU
// of `gpu_ids` that is not there, and those that are.
absl::StatusOr<v1::Resources> TakeInventory(const InventoryOverrides& overrides);

// The GPUs of `gpus` that CUDA_VISIBLE_DEVICES = `visible` names, by index or by (the beginning of
// a) UUID. Pure.
std::vector<v1::Gpu> VisibleGpus(const std::vector<v1::Gpu>& gpus, const std::string& visible);

// Those that `ids` name, in their order. Pure. INVALID_ARGUMENT as of TakeInventory.
absl::StatusOr<std::vector<v1::Gpu>> ChooseGpus(const std::vector<v1::Gpu>& gpus,
                                                const std::vector<std::string>& ids);

// N of each /dev/nvidiaN that there is.
std::vector<uint32_t> NvidiaMinors();

// The GPUs' UUIDs by index; empty where jobs are not held to their own GPUs, or where one has none.
std::map<uint32_t, std::string> NamesOfGpus(const v1::Resources& resources);

}  // namespace meshrun::worker
