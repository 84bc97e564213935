#include "parallel/nn/graph/metis_owners.h"

#include <metis.h>

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>

#include "parallel/base/split.h"

namespace meshrun {
namespace {

// Each node's neighbours without itself, each once, in METIS's form.
struct Adjacency {
  std::vector<idx_t> offsets;
  std::vector<idx_t> neighbours;
};

Adjacency adjacency_of(int64_t num_nodes, std::span<const int64_t> src,
                       std::span<const int64_t> dst) {
  std::vector<int64_t> ends(static_cast<size_t>(num_nodes) + 1, 0);
  for (size_t e = 0; e < src.size(); ++e) {
    if (src[e] == dst[e]) continue;
    ++ends[static_cast<size_t>(src[e]) + 1];
    ++ends[static_cast<size_t>(dst[e]) + 1];
  }
  for (size_t n = 1; n < ends.size(); ++n) ends[n] += ends[n - 1];
  std::vector<idx_t> all(static_cast<size_t>(ends.back()));
  std::vector<int64_t> next(ends.begin(), ends.end() - 1);
  const auto add = [&](int64_t node, int64_t neighbour) {
    all[static_cast<size_t>(next[static_cast<size_t>(node)]++)] = static_cast<idx_t>(neighbour);
  };
  for (size_t e = 0; e < src.size(); ++e) {
    if (src[e] == dst[e]) continue;
    add(src[e], dst[e]);
    add(dst[e], src[e]);
  }
  Adjacency result;
  result.offsets.push_back(0);
  for (size_t n = 0; n + 1 < ends.size(); ++n) {
    const auto begin = all.begin() + ends[n];
    const auto end = all.begin() + ends[n + 1];
    std::sort(begin, end);
    result.neighbours.insert(result.neighbours.end(), begin, std::unique(begin, end));
    result.offsets.push_back(static_cast<idx_t>(result.neighbours.size()));
  }
  return result;
}

}  // namespace

std::vector<int64_t> metis_owners(int64_t num_nodes, std::span<const int64_t> src,
                                  std::span<const int64_t> dst, int num_parts) {
  constexpr auto kMost = static_cast<size_t>(std::numeric_limits<idx_t>::max());
  if (static_cast<size_t>(num_nodes) >= kMost || src.size() >= kMost / 2) {
    throw std::invalid_argument("METIS has 32-bit numbers here, which do not hold a graph of " +
                                std::to_string(num_nodes) + " nodes and " +
                                std::to_string(src.size()) + " edges");
  }
  Adjacency graph = adjacency_of(num_nodes, src, dst);
  std::vector<int64_t> owners;
  if (num_parts == 1 || num_nodes <= num_parts || graph.neighbours.empty()) {
    // Nothing to choose, and METIS refuses some of these.
    const std::vector<int64_t> sizes = compute_split_shapes(num_nodes, num_parts);
    for (size_t part = 0; part < sizes.size(); ++part) {
      owners.insert(owners.end(), static_cast<size_t>(sizes[part]), static_cast<int64_t>(part));
    }
    return owners;
  }
  std::array<idx_t, METIS_NOPTIONS> options;
  METIS_SetDefaultOptions(options.data());
  options[METIS_OPTION_SEED] = 1;
  auto nodes = static_cast<idx_t>(num_nodes);
  auto parts = static_cast<idx_t>(num_parts);
  idx_t constraints = 1;
  idx_t cut = 0;
  std::vector<idx_t> part_of(static_cast<size_t>(num_nodes));
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const int status = METIS_PartGraphKway(&nodes, &constraints, graph.offsets.data(),
                                         graph.neighbours.data(), nullptr, nullptr, nullptr, &parts,
                                         nullptr, nullptr, options.data(), &cut, part_of.data());
  if (status != METIS_OK) {
    throw std::invalid_argument("METIS could not cut a graph of " + std::to_string(num_nodes) +
                                " nodes into " + std::to_string(num_parts) +
                                " parts: it returned " + std::to_string(status));
  }
  owners.assign(part_of.begin(), part_of.end());
  return owners;
}

}  // namespace meshrun
