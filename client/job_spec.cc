#include "client/job_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "core/job_spec.h"
#include "core/mesh_messages.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

bool ParseCount(std::string_view text, uint32_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc{} && end == text.data() + text.size() && *value >= 1;
}

}  // namespace

absl::StatusOr<NodeRange> ParseNodeRange(std::string_view text) {
  const size_t colon = text.find(':');
  NodeRange range;
  if (!ParseCount(text.substr(0, colon), &range.min) ||
      (colon != std::string_view::npos && !ParseCount(text.substr(colon + 1), &range.max))) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is not a number of nodes: write for example 2, or 1:4 for at least 1 and at most 4",
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
        "'{}' is not a number of processes: write a number, gpu (one per GPU) or cpu (one per "
        "core)",
        text));
  }
  return procs;
}

absl::Status SetMesh(std::string_view text, v1::JobSpec* spec) {
  MESHRUN_ASSIGN_OR_RETURN(const std::vector<Axis> axes, ParseMesh(text));
  SetAxes(axes, spec->mutable_mesh());
  return absl::OkStatus();
}

absl::Status SetRecovery(std::string_view text, v1::JobSpec* spec) {
  if (text == "auto" || text == "respawn") {
    spec->set_recovery(text == "auto" ? v1::RECOVERY_UNSPECIFIED : v1::RECOVERY_RESPAWN);
  } else {
    return absl::InvalidArgumentError(fmt::format("'{}': write auto or respawn", text));
  }
  return absl::OkStatus();
}

absl::Status SetReplace(std::string_view text, v1::JobSpec* spec) {
  if (text == "at-once") {
    spec->set_replace_at_once(true);
  } else {
    return absl::InvalidArgumentError(fmt::format(
        "'{}': write at-once; without it a lost node's place waits for its fence time", text));
  }
  return absl::OkStatus();
}

absl::Status SetGrowth(std::string_view text, v1::JobSpec* spec) {
  constexpr std::pair<std::string_view, v1::Growth> kNames[] = {
      {"checkpoint", v1::GROWTH_AT_CHECKPOINT},
      {"at-once", v1::GROWTH_AT_ONCE},
      {"never", v1::GROWTH_NEVER}};
  for (const auto& [name, growth] : kNames) {
    if (text != name) continue;
    spec->set_growth(growth);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format("'{}': write checkpoint, at-once or never", text));
}

bool NeedsPython(std::string_view argv0, bool argv0_is_executable) {
  return argv0.ends_with(".py") && !argv0_is_executable;
}

std::string DescribeShape(const v1::JobSpec& spec) {
  const uint32_t min = MinNodes(spec);
  const uint32_t max = MaxNodes(spec);
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
