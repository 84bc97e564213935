#include "worker/launch/job_limits.h"

#include <algorithm>
#include <set>

#include "core/job_spec.h"

namespace meshrun::worker {
namespace {

// The devices /dev/nvidiaN have it.
constexpr uint32_t kNvidiaMajor = 195;

// The kernel takes no higher limit.
constexpr uint64_t kMostPids = uint64_t{1} << 22;

using Device = v1::ResourceLimits::Device;

std::set<uint32_t> Minors(const google::protobuf::RepeatedPtrField<Device>& devices) {
  std::set<uint32_t> minors;
  for (const Device& device : devices) minors.insert(device.minor());
  return minors;
}

void Add(uint32_t minor, google::protobuf::RepeatedPtrField<Device>* devices) {
  Device& device = *devices->Add();
  device.set_major(kNvidiaMajor);
  device.set_minor(minor);
}

}  // namespace

v1::ResourceLimits LimitsFor(const v1::Prepare& prepare, const HostLimits& host, uint64_t beside) {
  v1::ResourceLimits limits;
  const auto ranks = static_cast<uint64_t>(prepare.ranks_size()) + beside;
  const uint64_t asked = prepare.spec().memory_bytes() * ranks;
  limits.set_memory_bytes(asked > 0 ? asked : host.memory_bytes);
  limits.set_cores(CpusPerProc(prepare.spec()) * static_cast<uint32_t>(ranks));
  limits.set_pids(std::min(host.pids_per_rank * ranks, kMostPids));
  std::set<uint32_t> own;
  for (const v1::RankAssignment& rank : prepare.ranks()) {
    for (const uint32_t gpu : rank.gpus()) {
      const auto minor = host.minor_by_gpu.find(gpu);
      // A driver that does not name its devices: which ones to deny, nobody knows.
      if (minor == host.minor_by_gpu.end()) return limits;
      own.insert(minor->second);
    }
  }
  for (const uint32_t minor : host.minors)
    Add(minor, own.contains(minor) ? limits.mutable_allowed() : limits.mutable_denied());
  return limits;
}

v1::ResourceLimits Both(const v1::ResourceLimits& one, const v1::ResourceLimits& other) {
  v1::ResourceLimits limits;
  limits.set_memory_bytes(std::max(one.memory_bytes(), other.memory_bytes()));
  limits.set_cores(std::max(one.cores(), other.cores()));
  limits.set_pids(std::max(one.pids(), other.pids()));
  std::set<uint32_t> allowed = Minors(one.allowed());
  allowed.merge(Minors(other.allowed()));
  std::set<uint32_t> denied = Minors(one.denied());
  denied.merge(Minors(other.denied()));
  for (const uint32_t minor : allowed) Add(minor, limits.mutable_allowed());
  for (const uint32_t minor : denied) {
    if (!allowed.contains(minor)) Add(minor, limits.mutable_denied());
  }
  return limits;
}

}  // namespace meshrun::worker
