// Ranks, and the extents that they have along one dimension, as a caller gives them: what is wrong
// with them.
//
// Pure; a wrong list never throws, since other ranks wait and must learn of it. A sentence names
// the argument, its value and what was expected; it is empty where nothing is wrong.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace meshrun {

// One extent for each of `world` ranks, none negative, `extent` in all (-1: any). `name`: of the
// argument.
std::string check_extents(std::string_view name, std::span<const int64_t> extents, int64_t extent,
                          int world);

// Whether `rank` (argument `name`) is one of a group of `world`.
std::string check_rank(std::string_view name, int64_t rank, int world);

std::string to_words(std::span<const int64_t> values);  // [3, 4]

}  // namespace meshrun
