#include "worker/cgroups/limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>

#include "core/status.h"
#include "worker/cgroups/control_files.h"
#include "worker/cgroups/device_rules.h"

namespace meshrun::worker {
namespace {

using Hierarchy = v1::ControlGroup::Hierarchy;

constexpr std::chrono::microseconds kPeriod(100'000);
// A weight of version 2 for one core, of at most 10,000, and of version 1.
constexpr uint64_t kWeightPerCore = 10;
constexpr uint64_t kMostWeight = 10'000;
constexpr uint64_t kSharesPerCore = 1024;
constexpr uint64_t kMostShares = 262'144;

absl::Status SetMemory(const Hierarchy& in, uint64_t bytes) {
  const std::string limit = std::to_string(bytes);
  if (in.unified()) {
    MESHRUN_RETURN_IF_ERROR(Write(in.directory() + "/memory.max", limit));
    // Pages that are swapped out are memory too. Not every kernel accounts for them.
    (void)Write(in.directory() + "/memory.swap.max", "0");
    return absl::OkStatus();
  }
  // The limit with swap may not be below the other one: which comes first depends on the old ones.
  const std::string swap = in.directory() + "/memory.memsw.limit_in_bytes";
  (void)Write(swap, limit);
  MESHRUN_RETURN_IF_ERROR(Write(in.directory() + "/memory.limit_in_bytes", limit));
  (void)Write(swap, limit);
  return absl::OkStatus();
}

absl::Status SetShare(const Hierarchy& in, uint32_t cores) {
  return in.unified()
             ? Write(in.directory() + "/cpu.weight",
                     std::to_string(std::clamp<uint64_t>(cores * kWeightPerCore, 1, kMostWeight)))
             : Write(in.directory() + "/cpu.shares",
                     std::to_string(std::clamp<uint64_t>(cores * kSharesPerCore, 2, kMostShares)));
}

absl::Status SetQuota(const Hierarchy& in, uint32_t cores) {
  const auto quota = static_cast<int64_t>(cores) * kPeriod.count();
  if (in.unified())
    return Write(in.directory() + "/cpu.max", fmt::format("{} {}", quota, kPeriod.count()));
  MESHRUN_RETURN_IF_ERROR(
      Write(in.directory() + "/cpu.cfs_period_us", std::to_string(kPeriod.count())));
  const absl::Status status = Write(in.directory() + "/cpu.cfs_quota_us", std::to_string(quota));
  // More than the group above has: that one's holds.
  return errno == EINVAL ? absl::OkStatus() : status;
}

absl::Status SetDevices(const Hierarchy& in, const v1::ResourceLimits& limits) {
  if (in.unified()) return AttachDeviceRules(in.directory(), limits);
  const auto rule = [](const v1::ResourceLimits::Device& device) {
    return fmt::format("c {}:{} rwm", device.major(), device.minor());
  };
  for (const auto& device : limits.allowed())
    MESHRUN_RETURN_IF_ERROR(Write(in.directory() + "/devices.allow", rule(device)));
  for (const auto& device : limits.denied())
    MESHRUN_RETURN_IF_ERROR(Write(in.directory() + "/devices.deny", rule(device)));
  return absl::OkStatus();
}

}  // namespace

absl::Status SetLimit(const Hierarchy& in, std::string_view limit,
                      const v1::ResourceLimits& limits) {
  if (limit == "memory" && limits.memory_bytes() > 0) return SetMemory(in, limits.memory_bytes());
  if (limit == "cpu" && limits.cores() > 0) return SetShare(in, limits.cores());
  if (limit == "cpu-quota" && limits.cores() > 0) return SetQuota(in, limits.cores());
  if (limit == "pids" && limits.pids() > 0)
    return Write(in.directory() + "/pids.max", std::to_string(limits.pids()));
  if (limit == "devices" && limits.denied_size() + limits.allowed_size() > 0)
    return SetDevices(in, limits);
  return absl::OkStatus();
}

}  // namespace meshrun::worker
