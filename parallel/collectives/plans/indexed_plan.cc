#include "parallel/collectives/plans/indexed_plan.h"

#include <numeric>

namespace meshrun {
namespace {

std::string check_table(const std::vector<std::vector<int64_t>>& sizes, int world) {
  const auto ranks = static_cast<size_t>(world);
  const std::string expected = " in a group of " + std::to_string(world) + " ranks; ";
  if (sizes.size() != ranks) {
    return "sizes has " + std::to_string(sizes.size()) + " rows" + expected +
           "one for each rank is expected";
  }
  for (size_t i = 0; i < ranks; ++i) {
    const std::string row = "sizes[" + std::to_string(i) + "]";
    if (sizes[i].size() != ranks) {
      return row + " has " + std::to_string(sizes[i].size()) + " entries" + expected +
             "one for each rank is expected";
    }
    for (size_t j = 0; j < ranks; ++j) {
      if (sizes[i][j] < 0) {
        return row + "[" + std::to_string(j) + "] is " + std::to_string(sizes[i][j]) +
               "; a number of slices is expected";
      }
    }
  }
  return {};
}

std::string check_indices(std::span<const std::span<const int64_t>> indices,
                          const std::vector<int64_t>& row, int64_t extent, int rank) {
  if (indices.size() != row.size()) {
    return "indices has " + std::to_string(indices.size()) + " entries in a group of " +
           std::to_string(row.size()) + " ranks; one for each rank is expected";
  }
  for (size_t j = 0; j < indices.size(); ++j) {
    const std::string name = "indices[" + std::to_string(j) + "]";
    if (static_cast<int64_t>(indices[j].size()) != row[j]) {
      return name + " has " + std::to_string(indices[j].size()) + " entries on rank " +
             std::to_string(rank) + ", and sizes[" + std::to_string(rank) + "][" +
             std::to_string(j) + "] is " + std::to_string(row[j]);
    }
    for (size_t k = 0; k < indices[j].size(); ++k) {
      const int64_t index = indices[j][k];
      if (index < 0 || index >= extent) {
        return name + "[" + std::to_string(k) + "] is " + std::to_string(index) + " on rank " +
               std::to_string(rank) + ", whose tensor has " + std::to_string(extent) +
               " slices; 0 to " + std::to_string(extent - 1) + " is expected";
      }
    }
  }
  return {};
}

uint64_t digest_of(const std::vector<std::vector<int64_t>>& sizes) {
  uint64_t digest = sizes.size();
  for (const auto& row : sizes) {
    for (const int64_t size : row) {
      // Multiplied by odd constants and shifted, as splitmix64 does.
      digest = (digest ^ static_cast<uint64_t>(size)) * 0x9e37'79b9'7f4a'7c15;
      digest ^= digest >> 29;
    }
  }
  return digest;
}

}  // namespace

IndexedPlan plan_indexed_exchange(std::span<const std::span<const int64_t>> indices,
                                  const std::vector<std::vector<int64_t>>& sizes, int64_t extent,
                                  int rank, int world) {
  IndexedPlan plan;
  const auto self = static_cast<size_t>(rank);
  plan.problem = check_table(sizes, world);
  if (plan.problem.empty()) plan.problem = check_indices(indices, sizes[self], extent, rank);
  if (!plan.problem.empty()) return plan;

  plan.table_digest = digest_of(sizes);
  plan.send_sizes = sizes[self];
  for (const auto& row : sizes) {
    plan.receive_sizes.push_back(row[self]);
    plan.table_rows.push_back(std::accumulate(row.begin(), row.end(), int64_t{0}));
  }

  // How often each slice is sent, in offsets[s + 1]; then where its positions begin.
  plan.offsets.assign(static_cast<size_t>(extent) + 1, 0);
  size_t sent = 0;
  for (const auto& list : indices) {
    sent += list.size();
    for (const int64_t s : list) ++plan.offsets[static_cast<size_t>(s) + 1];
  }
  for (size_t s = 0; s < static_cast<size_t>(extent); ++s) plan.offsets[s + 1] += plan.offsets[s];

  plan.own.assign(indices[self].begin(), indices[self].end());
  const size_t in_buffer = sent - plan.own.size();
  plan.remote.reserve(in_buffer);
  plan.positions.resize(sent);
  std::vector<int64_t> next(plan.offsets.begin(), plan.offsets.end() - 1);
  auto own_position = static_cast<int64_t>(in_buffer);
  for (size_t j = 0; j < indices.size(); ++j) {
    for (const int64_t s : indices[j]) {
      int64_t& place = next[static_cast<size_t>(s)];
      auto& position = plan.positions[static_cast<size_t>(place++)];
      if (j == self) {
        position = own_position++;
      } else {
        position = static_cast<int64_t>(plan.remote.size());
        plan.remote.push_back(s);
      }
    }
  }
  return plan;
}

}  // namespace meshrun
