#include "core/job_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "core/labels.h"
#include "core/mesh.h"
#include "core/mesh_messages.h"
#include "core/proto_time.h"
#include "core/status.h"
#include "core/text.h"

namespace meshrun {
namespace {

constexpr uint32_t kMostNodes = 100'000;
constexpr uint32_t kMostProcs = 4096;
constexpr int64_t kLargestWorld = 1'000'000;
constexpr uint64_t kMostMemory = uint64_t{1} << 50;
constexpr size_t kMostSpecBytes = size_t{1} << 20;
constexpr int64_t kLongestSeconds = 3650LL * 86400;

absl::Status CheckMeshAgainstNodes(const v1::JobSpec& spec) {
  const std::vector<Axis> mesh = AxesOf(spec.mesh());
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
        "mesh {} fits no number of ranks that {}-{} nodes with {} rank{} each can have: change the "
        "mesh, the number of nodes or the ranks per node",
        FormatMesh(mesh), spec.min_nodes(), spec.max_nodes(), procs, procs == 1 ? "" : "s"));
  }
  return absl::OkStatus();
}

absl::Status CheckDuration(std::string_view field, const google::protobuf::Duration& duration) {
  // Seconds first: more of them than nanoseconds can number would overflow.
  if (duration.seconds() > -kLongestSeconds && duration.seconds() < kLongestSeconds &&
      FromProto(duration) >= std::chrono::nanoseconds(0)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("{}: {} s is not between 0 and ten years", field, duration.seconds()));
}

bool HasZero(std::string_view text) { return text.find('\0') != std::string_view::npos; }

// What the system takes as C strings would end at a zero byte.
absl::Status CheckBytes(const v1::JobSpec& spec) {
  for (const std::string& word : spec.command()) {
    if (HasZero(word)) {
      return absl::InvalidArgumentError(
          fmt::format("command: '{}' holds a zero byte, which no argument can", word.c_str()));
    }
  }
  if (!spec.working_dir().empty() && spec.working_dir()[0] != '/') {
    return absl::InvalidArgumentError(fmt::format(
        "working_dir: '{}' is relative, and the ranks' hosts know no directory that it could begin "
        "at: write an absolute path",
        spec.working_dir()));
  }
  if (HasZero(spec.working_dir())) {
    return absl::InvalidArgumentError("working_dir: it holds a zero byte, which no path can");
  }
  if (HasZero(spec.tensorboard())) {
    return absl::InvalidArgumentError("tensorboard: it holds a zero byte, which no path can");
  }
  if (!spec.tensorboard().empty() && spec.tensorboard()[0] != '/' && spec.working_dir().empty()) {
    return absl::InvalidArgumentError(
        fmt::format("tensorboard: '{}' is relative, and the job has no working_dir that it could "
                    "begin at: write an absolute path",
                    spec.tensorboard()));
  }
  for (const v1::EnvEntry& entry : spec.env()) {
    const std::string& name = entry.name();
    if (name.empty() || name.find('=') != std::string::npos || HasZero(name)) {
      return absl::InvalidArgumentError(
          fmt::format("env: '{}' is not the name of an environment variable", name));
    }
    if (IsSetForRanks(name)) {
      return absl::InvalidArgumentError(fmt::format(
          "env: {} is set by meshrun for each rank: leave it out, or take another name", name));
    }
    if (HasZero(entry.value())) {
      return absl::InvalidArgumentError(
          fmt::format("env: {} holds a zero byte, which no variable can", name));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const v1::JobSpec& spec) {
  if (const size_t bytes = spec.ByteSizeLong(); bytes > kMostSpecBytes) {
    return absl::InvalidArgumentError(fmt::format(
        "the job's specification has {}, and at most {} are taken: put what is large (arguments, "
        "environment) into a file that the ranks read",
        FormatBytes(bytes), FormatBytes(kMostSpecBytes)));
  }
  const uint32_t procs = spec.procs_per_node().count();
  if (spec.max_nodes() > kMostNodes) {
    return absl::InvalidArgumentError(fmt::format(
        "max_nodes: {} is more than {}, the most that is taken", spec.max_nodes(), kMostNodes));
  }
  for (const auto& [field, value] :
       {std::pair("procs_per_node", procs), std::pair("cpus_per_proc", spec.cpus_per_proc()),
        std::pair("gpus_per_proc", spec.gpus_per_proc())}) {
    if (value <= kMostProcs) continue;
    return absl::InvalidArgumentError(
        fmt::format("{}: {} is more than {}, the most that is taken", field, value, kMostProcs));
  }
  if (int64_t{procs} * spec.max_nodes() > kLargestWorld) {
    return absl::InvalidArgumentError(
        fmt::format("{} nodes with {} ranks each are more than {} "
                    "ranks",
                    spec.max_nodes(), procs, kLargestWorld));
  }
  if (spec.memory_bytes() > kMostMemory) {
    return absl::InvalidArgumentError(
        fmt::format("memory_bytes: {} of a rank is more than 1 PiB, the most that is taken",
                    FormatBytes(spec.memory_bytes())));
  }
  return absl::OkStatus();
}

}  // namespace

std::string JobNameFromCommand(std::string_view command) {
  std::string_view base = command.substr(command.rfind('/') + 1);
  if (const size_t dot = base.rfind('.'); dot != std::string_view::npos && dot > 0)
    base = base.substr(0, dot);
  std::string name;
  for (const char c : base) {
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      name += c;
    } else if (c >= 'A' && c <= 'Z') {
      name += static_cast<char>(c - 'A' + 'a');
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
    if (name.size() == kLongestJobName) break;
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name.empty() ? "job" : name;
}

absl::Status CheckJobName(std::string_view name) {
  const bool right = !name.empty() && name.size() <= kLongestJobName && name.front() != '-' &&
                     name.back() != '-' && std::all_of(name.begin(), name.end(), [](char c) {
                       return c == '-' || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
                     });
  if (right) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "'{}' is not a job name: use a-z, 0-9 and, between them, '-', at most {} characters, for "
      "example {}",
      name, kLongestJobName, JobNameFromCommand(name)));
}

bool IsSetForRanks(std::string_view variable) {
  constexpr std::string_view kNames[] = {"RANK",
                                         "LOCAL_RANK",
                                         "WORLD_SIZE",
                                         "LOCAL_WORLD_SIZE",
                                         "GROUP_RANK",
                                         "GROUP_WORLD_SIZE",
                                         "NODE_RANK",
                                         "ROLE_RANK",
                                         "ROLE_WORLD_SIZE",
                                         "MASTER_ADDR",
                                         "MASTER_PORT",
                                         "TORCHELASTIC_RESTART_COUNT",
                                         "TORCHELASTIC_MAX_RESTARTS",
                                         "TORCHELASTIC_RUN_ID",
                                         "TORCHELASTIC_USE_AGENT_STORE",
                                         "TORCHELASTIC_ERROR_FILE",
                                         "MESHRUN_AGENT",
                                         "MESHRUN_JOB_ID",
                                         "MESHRUN_GENERATION",
                                         "MESHRUN_TOKEN",
                                         "MESHRUN_REPORT",
                                         "MESHRUN_NODE_NAME",
                                         "MESHRUN_MESH",
                                         "MESHRUN_GPUS"};
  return std::find(std::begin(kNames), std::end(kNames), variable) != std::end(kNames);
}

namespace {

absl::Status CheckArray(const v1::JobSpec& spec) {
  if (!spec.has_array()) return absl::OkStatus();
  const auto& indices = spec.array().indices();
  if (indices.empty() || indices.size() > kMostOfAnArray) {
    return absl::InvalidArgumentError(fmt::format("array: it has {} jobs: write 1 to {} indices",
                                                  indices.size(), kMostOfAnArray));
  }
  std::set<uint32_t> seen;
  for (const uint32_t index : indices) {
    if (!seen.insert(index).second)
      return absl::InvalidArgumentError(fmt::format("array: index {} is there twice", index));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status NormalizeJobSpec(v1::JobSpec& spec) {
  if (spec.name().empty()) {
    spec.set_name(JobNameFromCommand(!spec.shipped_job().empty() ? spec.shipped_job()
                                     : spec.command().empty()    ? std::string()
                                                                 : spec.command(0)));
  }
  MESHRUN_RETURN_IF_ERROR(Annotate(CheckJobName(spec.name()), "name"));
  if (spec.shipped_job().empty() && (spec.command().empty() || spec.command(0).empty())) {
    return absl::InvalidArgumentError(
        "command: there is nothing to run: give a program after --, for example -- ./train, or a "
        "shipped job with --job geoid");
  }
  spec.set_min_nodes(MinNodes(spec));
  if (spec.max_nodes() != 0 && spec.max_nodes() < spec.min_nodes()) {
    return absl::InvalidArgumentError(fmt::format("max_nodes: {} is less than min_nodes, {}",
                                                  spec.max_nodes(), spec.min_nodes()));
  }
  spec.set_max_nodes(MaxNodes(spec));
  spec.set_cpus_per_proc(CpusPerProc(spec));
  v1::ProcsPerNode& procs = *spec.mutable_procs_per_node();
  if (procs.kind_case() == v1::ProcsPerNode::KIND_NOT_SET ||
      (procs.kind_case() == v1::ProcsPerNode::kCount && procs.count() == 0)) {
    procs.set_count(1);
  }
  MESHRUN_RETURN_IF_ERROR(CheckSizes(spec));
  MESHRUN_RETURN_IF_ERROR(CheckDuration("kill_grace", spec.kill_grace()));
  MESHRUN_RETURN_IF_ERROR(CheckDuration("queue_timeout", spec.queue_timeout()));
  MESHRUN_RETURN_IF_ERROR(CheckDuration("hang_timeout", spec.hang_timeout()));
  MESHRUN_RETURN_IF_ERROR(CheckDuration("time_limit", spec.time_limit()));
  if (spec.has_time_limit() && FromProto(spec.time_limit()).count() == 0) {
    return absl::InvalidArgumentError(
        "time_limit: write a time above 0, for example 1h30m, or leave it out to run without "
        "limit");
  }
  for (const std::string& constraint : spec.constraints()) {
    MESHRUN_RETURN_IF_ERROR(Annotate(CheckConstraint(constraint), "constraints"));
  }
  for (const std::string& node : spec.exclude_nodes()) {
    if (node.empty()) {
      return absl::InvalidArgumentError("exclude_nodes: a name is empty: write names of nodes");
    }
  }
  MESHRUN_RETURN_IF_ERROR(CheckArray(spec));
  MESHRUN_RETURN_IF_ERROR(CheckBytes(spec));
  return CheckMeshAgainstNodes(spec);
}

uint32_t MinNodes(const v1::JobSpec& spec) { return std::max(spec.min_nodes(), 1u); }

uint32_t MaxNodes(const v1::JobSpec& spec) { return std::max(spec.max_nodes(), MinNodes(spec)); }

std::chrono::nanoseconds KillGrace(const v1::JobSpec& spec) {
  return spec.has_kill_grace() ? FromProto(spec.kill_grace()) : kDefaultKillGrace;
}

uint32_t CpusPerProc(const v1::JobSpec& spec) { return std::max(spec.cpus_per_proc(), 1u); }

}  // namespace meshrun
