#include "client/job_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <vector>

#include "core/job_spec.h"
#include "core/mesh_messages.h"
#include "core/status.h"
#include "core/text.h"

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

absl::Status SetArray(std::string_view text, v1::JobSpec* spec) {
  const absl::Status wrong = absl::InvalidArgumentError(
      fmt::format("'{}' is not an array: write for example 0-99, 1,5,9 or 0-99:10, and with %4 how "
                  "many run at a time: 0-99%4",
                  text));
  v1::JobArray array;
  const size_t percent = text.find('%');
  uint32_t at_once = 0;
  if (percent != std::string_view::npos && !ParseCount(text.substr(percent + 1), &at_once))
    return wrong;
  array.set_at_once(at_once);
  std::set<int> indices;
  std::string_view left = text.substr(0, percent);
  while (true) {
    const size_t comma = std::min(left.find(','), left.size());
    const std::string_view part = left.substr(0, comma);
    const size_t colon = std::min(part.find(':'), part.size());
    uint32_t step = 1;
    if (colon < part.size() && !ParseCount(part.substr(colon + 1), &step)) return wrong;
    const auto range = ParseRanks(part.substr(0, colon));
    if (!range.ok()) return wrong;
    for (size_t i = 0; i < range->size(); i += step) indices.insert((*range)[i]);
    if (comma == left.size()) break;
    left.remove_prefix(comma + 1);
  }
  if (indices.size() > static_cast<size_t>(kMostOfAnArray)) {
    return absl::InvalidArgumentError(fmt::format("'{}' has {} jobs, and an array has {} at most",
                                                  text, indices.size(), kMostOfAnArray));
  }
  for (const int index : indices) array.add_indices(static_cast<uint32_t>(index));
  *spec->mutable_array() = std::move(array);
  return absl::OkStatus();
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

absl::Status SetNumaBinding(std::string_view text, v1::JobSpec* spec) {
  constexpr std::pair<std::string_view, v1::NumaBinding> kNames[] = {
      {"node", v1::NUMA_BINDING_NODE},
      {"socket", v1::NUMA_BINDING_SOCKET},
      {"exclusive", v1::NUMA_BINDING_EXCLUSIVE},
      {"core-complex", v1::NUMA_BINDING_CORE_COMPLEX}};
  for (const auto& [name, binding] : kNames) {
    if (text != name) continue;
    spec->set_numa_binding(binding);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("'{}': write node, socket, exclusive or core-complex", text));
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
    case v1::ProcsPerNode::kNode:
      return nodes + ", as many ranks as each says";
    default:
      break;
  }
  const uint32_t ranks = std::max<uint32_t>(spec.procs_per_node().count(), 1);
  return fmt::format("{} x {} rank{}", nodes, ranks, ranks == 1 ? "" : "s");
}

}  // namespace meshrun::client
