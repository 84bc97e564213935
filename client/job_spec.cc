#include "client/job_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "core/mesh.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

constexpr size_t kMaxName = 40;
constexpr uint32_t kMaxCount = 1'000'000;

bool ParseCount(std::string_view text, uint32_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc{} && end == text.data() + text.size() && *value >= 1 &&
         *value <= kMaxCount;
}

std::vector<Axis> MeshOf(const v1::JobSpec& spec) {
  std::vector<Axis> axes;
  for (const v1::MeshAxis& axis : spec.mesh()) axes.push_back({axis.name(), axis.size()});
  return axes;
}

}  // namespace

absl::StatusOr<NodeRange> ParseNodeRange(std::string_view text) {
  const size_t colon = text.find(':');
  NodeRange range;
  if (!ParseCount(text.substr(0, colon), &range.min) ||
      (colon != std::string_view::npos && !ParseCount(text.substr(colon + 1), &range.max))) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is no number of nodes: write for example 2, or 1:4 for at least 1 and at most 4",
        text));
  }
  if (colon == std::string_view::npos) range.max = range.min;
  if (range.max < range.min) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' asks for at least {} and at most {} nodes: write the smaller number first", text,
        range.min, range.max));
  }
  return range;
}

absl::StatusOr<v1::ProcsPerNode> ParseProcsPerNode(std::string_view text, bool has_gpu) {
  v1::ProcsPerNode procs;
  uint32_t count = 0;
  if (text == "gpu" || (text == "auto" && has_gpu)) {
    procs.set_gpu(true);
  } else if (text == "cpu" || text == "auto") {
    procs.set_cpu(true);
  } else if (ParseCount(text, &count)) {
    procs.set_count(count);
  } else {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is no number of processes: write a number, gpu (one per GPU) or cpu (one per "
        "core)",
        text));
  }
  return procs;
}

absl::Status SetMesh(std::string_view text, v1::JobSpec* spec) {
  MESHRUN_ASSIGN_OR_RETURN(const std::vector<Axis> axes, ParseMesh(text));
  spec->clear_mesh();
  for (const Axis& axis : axes) {
    v1::MeshAxis* out = spec->add_mesh();
    out->set_name(axis.name);
    out->set_size(axis.size);
  }
  return absl::OkStatus();
}

std::string NameFromCommand(std::string_view command) {
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
    if (name.size() == kMaxName) break;
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name.empty() ? "job" : name;
}

absl::Status CheckName(std::string_view name) {
  const bool right = !name.empty() && name.size() <= kMaxName && name.front() != '-' &&
                     name.back() != '-' && std::all_of(name.begin(), name.end(), [](char c) {
                       return c == '-' || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
                     });
  if (right) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "'{}' is no name for a job: use a-z, 0-9 and '-', at most {} characters, for example {}",
      name, kMaxName, NameFromCommand(name)));
}

absl::Status CheckJobSpec(const v1::JobSpec& spec) {
  MESHRUN_RETURN_IF_ERROR(CheckName(spec.name()));
  if (spec.command().empty() && spec.shipped_job().empty()) {
    return absl::InvalidArgumentError(
        "there is nothing to run: give a command after --, for example -- ./train, or a shipped "
        "job with "
        "--job geoid");
  }
  const std::vector<Axis> axes = MeshOf(spec);
  if (axes.empty()) return absl::OkStatus();
  MESHRUN_RETURN_IF_ERROR(CheckMesh(axes));
  // The number of ranks is known here only where it does not depend on the nodes.
  if (spec.procs_per_node().kind_case() == v1::ProcsPerNode::kGpu ||
      spec.procs_per_node().kind_case() == v1::ProcsPerNode::kCpu) {
    return absl::OkStatus();
  }
  const int64_t unit = std::max<uint32_t>(spec.procs_per_node().count(), 1);
  const int64_t min = std::max<uint32_t>(spec.min_nodes(), 1);
  const int64_t max = std::max<int64_t>(spec.max_nodes(), min);
  if (LargestMeshWorld(axes, max * unit, unit) >= min * unit) return absl::OkStatus();
  const absl::Status why = ResolveMesh(axes, max * unit).status();
  if (min == max || why.ok()) return why;
  return absl::InvalidArgumentError(
      fmt::format("{} ({})", std::string(why.message()), DescribeShape(spec)));
}

bool NeedsPython(std::string_view argv0, bool argv0_is_executable) {
  return argv0.ends_with(".py") && !argv0_is_executable;
}

std::string DescribeShape(const v1::JobSpec& spec) {
  const uint32_t min = std::max<uint32_t>(spec.min_nodes(), 1);
  const uint32_t max = std::max(spec.max_nodes(), min);
  std::string nodes = min == max ? fmt::format("{} node{}", min, min == 1 ? "" : "s")
                                 : fmt::format("{}-{} nodes", min, max);
  switch (spec.procs_per_node().kind_case()) {
    case v1::ProcsPerNode::kGpu:
      return nodes + ", a rank per GPU";
    case v1::ProcsPerNode::kCpu:
      return nodes + ", a rank per core";
    default:
      break;
  }
  const uint32_t ranks = std::max<uint32_t>(spec.procs_per_node().count(), 1);
  return fmt::format("{} x {} rank{}", nodes, ranks, ranks == 1 ? "" : "s");
}

}  // namespace meshrun::client
