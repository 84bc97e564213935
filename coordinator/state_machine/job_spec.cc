#include "coordinator/state_machine/job_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/mesh.h"
#include "core/proto_time.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

constexpr uint32_t kMaxNodes = 100'000;
constexpr uint32_t kMaxProcs = 4096;
constexpr int64_t kMaxWorld = 1'000'000;

absl::Status CheckName(std::string_view name) {
  const bool letters = std::all_of(name.begin(), name.end(), [](char c) {
    return c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z');
  });
  if (letters && name.size() <= 40 && name.front() != '-') return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "name: '{}' is not of lower-case letters, digits and '-', at most 40 of them, for example "
      "geoid-run1",
      name));
}

absl::Status CheckMeshAgainstNodes(const v1::JobSpec& spec) {
  std::vector<Axis> mesh;
  for (const v1::MeshAxis& axis : spec.mesh()) mesh.push_back({axis.name(), axis.size()});
  if (mesh.empty()) return absl::OkStatus();
  MESHRUN_RETURN_IF_ERROR(Annotate(CheckMesh(mesh), "mesh"));
  // The number of ranks is known only for a count; on GPUs and cores the placement decides.
  if (spec.procs_per_node().kind_case() != v1::ProcsPerNode::kCount) return absl::OkStatus();
  const int64_t procs = spec.procs_per_node().count();
  if (spec.min_nodes() == spec.max_nodes()) {
    return ResolveMesh(mesh, procs * spec.min_nodes()).status();
  }
  if (LargestMeshWorld(mesh, procs * spec.max_nodes(), procs) < procs * spec.min_nodes()) {
    return absl::InvalidArgumentError(fmt::format(
        "mesh {} divides no world of {} to {} nodes with {} ranks each: change the mesh, "
        "--nodes or --procs-per-node",
        FormatMesh(mesh), spec.min_nodes(), spec.max_nodes(), procs));
  }
  return absl::OkStatus();
}

absl::Status CheckDuration(std::string_view field, const google::protobuf::Duration& duration) {
  if (FromProto(duration) >= std::chrono::nanoseconds(0) && duration.seconds() < 3650LL * 86400) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("{}: {} s is not between 0 and ten years", field, duration.seconds()));
}

}  // namespace

absl::Status NormalizeJobSpec(v1::JobSpec& spec) {
  if (spec.name().empty()) {
    spec.set_name(spec.shipped_job().empty() ? "job" : spec.shipped_job());
    for (char& c : *spec.mutable_name()) {
      if (c == '_') c = '-';
    }
  }
  MESHRUN_RETURN_IF_ERROR(CheckName(spec.name()));
  if (spec.shipped_job().empty() && (spec.command().empty() || spec.command(0).empty())) {
    return absl::InvalidArgumentError(
        "command: nothing to run: give a program and its arguments, or shipped_job");
  }
  spec.set_min_nodes(std::max(spec.min_nodes(), 1u));
  spec.set_max_nodes(std::max(spec.max_nodes(), spec.min_nodes()));
  if (spec.max_nodes() > kMaxNodes) {
    return absl::InvalidArgumentError(
        fmt::format("max_nodes: {} is above {}", spec.max_nodes(), kMaxNodes));
  }
  spec.set_cpus_per_proc(std::max(spec.cpus_per_proc(), 1u));
  v1::ProcsPerNode& procs = *spec.mutable_procs_per_node();
  if (procs.kind_case() == v1::ProcsPerNode::KIND_NOT_SET ||
      (procs.kind_case() == v1::ProcsPerNode::kCount && procs.count() == 0)) {
    procs.set_count(1);
  }
  if (procs.count() > kMaxProcs || spec.cpus_per_proc() > kMaxProcs ||
      spec.gpus_per_proc() > kMaxProcs) {
    return absl::InvalidArgumentError(
        fmt::format("procs_per_node {}, cpus_per_proc {}, gpus_per_proc {}: none may be above {}",
                    procs.count(), spec.cpus_per_proc(), spec.gpus_per_proc(), kMaxProcs));
  }
  if (int64_t{procs.count()} * spec.max_nodes() > kMaxWorld) {
    return absl::InvalidArgumentError(
        fmt::format("{} nodes with {} ranks each are more than {} ranks", spec.max_nodes(),
                    procs.count(), kMaxWorld));
  }
  if (spec.memory_bytes() > (uint64_t{1} << 50)) {
    return absl::InvalidArgumentError(
        fmt::format("memory_bytes: {} per rank is above 1 PiB", spec.memory_bytes()));
  }
  MESHRUN_RETURN_IF_ERROR(CheckDuration("kill_grace", spec.kill_grace()));
  MESHRUN_RETURN_IF_ERROR(CheckDuration("queue_timeout", spec.queue_timeout()));
  for (const auto& [name, value] : spec.env()) {
    if (name.empty() || name.find('=') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      return absl::InvalidArgumentError(
          fmt::format("env: '{}' is no name of an environment variable", name));
    }
  }
  return CheckMeshAgainstNodes(spec);
}

}  // namespace meshrun::coordinator
