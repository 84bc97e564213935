// Which rank sends which slices to which rank in an indexed all-to-all, and the inverse. Pure,
// without LibTorch.
//
// The send list is indices[0], indices[1], ..., one after another: the order in which the backward
// pass adds. Slices for other ranks are packed in one buffer, in that order; a rank's own slices
// are not packed but read and written in place. A position names an entry of the send list by the
// place of its slice: in the buffer (counted from 0), or among the rank's own (counted on from the
// buffer's length).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace meshrun {

struct IndexedPlan {
  std::string problem;                 // empty: none; else nothing below holds
  std::vector<int64_t> send_sizes;     // slices that go to each rank, and that come from each;
  std::vector<int64_t> receive_sizes;  // with one's own
  std::vector<int64_t> remote;         // what the buffer holds: a slice's number for each place
  std::vector<int64_t> own;            // what goes to oneself
  // The inverse: slice s was sent at positions[offsets[s]] up to positions[offsets[s + 1] - 1],
  // ordered as in the send list.
  std::vector<int64_t> offsets;
  std::vector<int64_t> positions;
  // Digest of `sizes`, which all ranks must have alike, and what each rank sends in all, by which a
  // reader finds the row that differs.
  uint64_t table_digest = 0;
  std::vector<int64_t> table_rows;
};

// indices[j]: numbers of the slices for rank j, 0 up to `extent`. sizes[i][j]: how many rank i
// sends to rank j. O(world^2 + slices sent + extent).
IndexedPlan plan_indexed_exchange(std::span<const std::span<const int64_t>> indices,
                                  const std::vector<std::vector<int64_t>>& sizes, int64_t extent,
                                  int rank, int world);

}  // namespace meshrun
