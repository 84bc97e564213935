// Parts of a graph with about as many nodes each and few edges between them, by METIS. Pure,
// without LibTorch.
//
// Karypis and Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs"
// (1998). Edges count in both directions, self loops and duplicates not. The same call gives the
// same parts in every run of one build of METIS.
//
// Threads: any; METIS keeps global state, so calls run one at a time. Errors: std::invalid_argument
// where METIS fails, or where its 32-bit numbers do not hold the graph.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace meshrun {

// The part of each node, from 0 to num_parts - 1. Some parts may be empty. Edge e goes from src[e]
// to dst[e], both below num_nodes.
std::vector<int64_t> metis_owners(int64_t num_nodes, std::span<const int64_t> src,
                                  std::span<const int64_t> dst, int num_parts);

}  // namespace meshrun
