// What one rank knows, told to all: for calls that end on every rank alike although only one of
// them can see a file.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace meshrun {

// All are collective over `group` and communicate from `device`.

// The text of rank `root`.
std::string broadcast_text(c10d::ProcessGroup& group, c10::Device device, const std::string& text,
                           int root = 0);

// The problem of the lowest rank that has one, on every rank; empty: no rank has. `problem` is this
// rank's, empty for none. Costs one all-reduce of 8 bytes if there is none.
std::string common_problem(c10d::ProcessGroup& group, c10::Device device,
                           const std::string& problem);

// The least of the ranks' numbers, one by one. One all-reduce.
std::vector<int64_t> least(c10d::ProcessGroup& group, c10::Device device,
                           const std::vector<int64_t>& own);

// The numbers of all ranks, by rank, on every rank. One all-reduce.
std::vector<int64_t> number_by_rank(c10d::ProcessGroup& group, c10::Device device, int64_t own);

// Which of these numbers are equal on all ranks, one by one. One all-reduce.
std::vector<bool> are_equal(c10d::ProcessGroup& group, c10::Device device,
                            const std::vector<int64_t>& own);

// The texts of all ranks, by rank, on every rank.
std::vector<std::string> gather_texts(c10d::ProcessGroup& group, c10::Device device,
                                      const std::string& text);

}  // namespace meshrun
