// The table of sizes of an all-to-all. Each rank knows its own row of it: what it sends to each
// rank, and what it expects from each. Here the rows are together, and two of them may contradict
// each other.
//
// Pure; no errors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace meshrun {

struct SizeRow {
  // By rank, along the dimension that is cut there.
  std::span<const int64_t> sent, expected;
  // Elements of a slice of extent 1, on either side.
  int64_t sent_slice = 1, expected_slice = 1;
  bool is_known = true;
};

struct SizeDifference {
  int sender = -1, receiver = -1;
  // "rank 0 sends 1 to rank 1, which expects 2 (rank 0 sends [1, 1] to the ranks; rank 1 expects
  // [2, 2] of them)"
  std::string words;
};

// The first pair of ranks whose sizes differ, by sender and then by receiver, so all ranks find the
// same one. What a rank sends to itself is not looked at. Absent: no pair of known rows differs.
std::optional<SizeDifference> first_difference(std::span<const SizeRow> rows);

}  // namespace meshrun
