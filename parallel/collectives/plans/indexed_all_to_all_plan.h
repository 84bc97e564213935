// Which slices an indexed all-to-all sends to which rank, checked and inverted once for many calls:
// a graph's halo exchange is the same in every layer and every step.
//
// indices[j]: the slices along dim that this rank sends to rank j; int64 or int32, 1-D, on any
// device, 0 up to `extent`; they may repeat, and there may be none. sizes[i][j]: how many slices
// rank i sends to rank j, the same table on every rank. `extent`: tensor.size(dim).
//
// Holds the send list, with this rank's own slices kept apart (they never travel), and its inverse
// for the backward pass: for each slice of the tensor the positions where it was sent, in the order
// of the send list, from a stable counting sort. Costs O(slices sent + extent) once; index tensors
// on a GPU are copied to the host for it.
//
// The constructor does not communicate. It keeps a problem with the arguments as a text, which
// becomes the error, on all ranks, of the calls that use the plan.
//
// Copies share everything. Threads: any; immutable. Errors: those of GroupArgument.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

class IndexedAllToAllPlan {
 public:
  IndexedAllToAllPlan(const std::vector<at::Tensor>& indices,
                      const std::vector<std::vector<int64_t>>& sizes, IntArgument extent,
                      const GroupArgument& group = {});

  // What is wrong with the arguments; empty: nothing.
  const std::string& problem() const;
  const GroupArgument::Handle& group() const;
  // What tensors of this plan have along dim.
  int64_t extent() const;
  // Slices that this rank receives, its own among them: the result's extent along dim.
  int64_t num_received() const;

  struct State;  // indexed_exchange.h
  const std::shared_ptr<const State>& state() const { return state_; }

 private:
  std::shared_ptr<const State> state_;
};

}  // namespace meshrun
