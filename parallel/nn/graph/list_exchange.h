// How ranks exchange lists of numbers, for plans that all ranks of a group make together. Without
// LibTorch, so that a test can run all ranks of such a plan in one process.
#pragma once

#include <cstdint>
#include <vector>

namespace meshrun {

// Numbers for each rank, or from each rank: one list after another, in rank order.
struct RankLists {
  std::vector<int64_t> values;
  std::vector<int64_t> sizes;  // of each rank's list
};

class ListExchange {
 public:
  virtual ~ListExchange() = default;

  virtual int rank() const = 0;
  virtual int world() const = 0;
  // Collective. `lists` has one size per rank; the result has what each rank sends to this one.
  virtual RankLists all_to_all(const RankLists& lists) = 0;
};

}  // namespace meshrun
