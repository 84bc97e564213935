#include "client/render/world_change.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "core/text.h"

namespace meshrun::client {
namespace {

std::map<std::string, int> NodesOf(const v1::Job& job) {
  std::map<std::string, int> out;
  for (const v1::RankStatus& rank : job.ranks()) ++out[rank.node_name()];
  return out;
}

std::vector<std::string> NotIn(const std::map<std::string, int>& nodes,
                               const std::map<std::string, int>& others) {
  std::vector<std::string> out;
  for (const auto& [name, ranks] : nodes) {
    if (!others.contains(name)) out.push_back(name);
  }
  return out;
}

}  // namespace

std::string WorldChanges::Update(const v1::Job& job) {
  const bool runs = job.state() == v1::JOB_STATE_RUNNING;
  if (!runs && generation_ == job.generation() && !job.reason().empty()) why_ = job.reason();
  if (!runs || job.ranks().empty() || job.generation() == generation_) return "";
  std::map<std::string, int> before = std::exchange(nodes_, NodesOf(job));
  const uint32_t size_before = std::exchange(world_size_, job.world_size());
  const bool is_first = std::exchange(generation_, job.generation()) == 0;
  std::string why = std::exchange(why_, "");
  if (is_first || (before == nodes_ && size_before == world_size_)) return "";
  const std::vector<std::string> joined = NotIn(nodes_, before);
  const std::vector<std::string> left = NotIn(before, nodes_);
  std::string line =
      fmt::format("{}: {} now, {} before", job.job_id(), Count(world_size_, "rank"), size_before);
  if (!left.empty()) {
    line += fmt::format("; {} {} gone", fmt::join(left, ", "), left.size() == 1 ? "is" : "are");
  }
  if (!joined.empty()) line += fmt::format("; {} joined", fmt::join(joined, ", "));
  // What grows says no more than the numbers.
  if (!left.empty() && !why.empty()) line += fmt::format(": {}", why);
  return line;
}

}  // namespace meshrun::client
