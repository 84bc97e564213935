// Ranks, and the extents that they have along one dimension: what is wrong with a caller's, the
// total, and where each rank's piece begins.
//
// Pure; a wrong list never throws, since other ranks wait and must learn of it. A sentence names
// the argument, its value and what was expected; it is empty where nothing is wrong.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshrun {

// One extent for each of `world` ranks, none negative, `extent` in all (-1: any). `name`: of the
// argument.
std::string check_extents(std::string_view name, std::span<const int64_t> extents, int64_t extent,
                          int world);

// Whether `rank` (argument `name`) is one of a group of `world`.
std::string check_rank(std::string_view name, int64_t rank, int world);

// {3, 4, 2} is 9 in all; its pieces begin at {0, 3, 7, 9}. The last offset is the end of the last
// piece, so there is one more than extents. `first`: where the first piece begins.
int64_t total_extent(std::span<const int64_t> extents);
std::vector<int64_t> extent_offsets(std::span<const int64_t> extents, int64_t first = 0);

std::string to_words(std::span<const int64_t> values);  // [3, 4]

}  // namespace meshrun
