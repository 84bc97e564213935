// A collective on pieces of known sizes, prepared once: a call looks nothing up and asks nothing of
// its peers.
//
//   const auto gather = PlannedCollective::all_gather({0, {3, 3, 2}}, group, {digest, " (of x)"});
//   at::Tensor whole = gather(piece);
//
// Shapes: those of all_gather_v, reduce_scatter_v, scatter_v and all_to_all_v. Results are
// contiguous, in new memory. Dtypes: all that the backend moves; sums of 16-bit floats are made in
// float32. Without a gradient: callers have a backward of their own.
//
// Threads: any, also one plan on several; all ranks of the group make its calls in the same order.
// Errors: from the makers those of GroupArgument, and c10::ValueError for sizes that do not fit
// the group, on this rank; from calls, on every rank that called: a tensor that does not fit,
// ranks whose agreements differ (parallel/base/collective_errors.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/base/arguments.h"
#include "parallel/collectives/group_argument.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace meshrun {

struct Collective;

class PlannedCollective {
 public:
  // Pieces of the ranks along a dimension counted from the front.
  struct Along {
    IntArgument dim = 0;
    std::vector<int64_t> sizes;
  };
  // What all ranks must have alike beside their tensors. 0: nothing. `words` are added to this
  // rank's side of the error.
  struct Agreement {
    uint64_t digest = 0;
    std::string words;
  };

  static PlannedCollective all_gather(Along pieces, const GroupArgument& group,
                                      Agreement agreement);
  static PlannedCollective reduce_scatter(Along pieces, const GroupArgument& group,
                                          Agreement agreement);
  // Off `src` the tensor is a template; its extent along the dim is ignored.
  static PlannedCollective scatter(Along pieces, IntArgument src, const GroupArgument& group,
                                   Agreement agreement);
  static PlannedCollective all_to_all(Along sent, Along received, const GroupArgument& group,
                                      Agreement agreement);
  PlannedCollective(const PlannedCollective&);
  PlannedCollective& operator=(const PlannedCollective&);
  ~PlannedCollective();

  // `work`: gets the Work of the operation, which is still under way; null: the call waits for it.
  at::Tensor operator()(const at::Tensor& tensor,
                        c10::intrusive_ptr<c10d::Work>* work = nullptr) const;
  // In place of a call that this rank cannot make: raises `problem` here and on the other ranks.
  [[noreturn]] void refuse(const std::string& problem) const;

 private:
  // `kind`: a CollectiveSpec::Kind.
  PlannedCollective(uint8_t kind, Along pieces, Along received, const GroupArgument& group,
                    Agreement agreement);
  // What does not fit; empty: nothing.
  std::string problem_of(const at::Tensor& tensor) const;

  // Extents of this rank's tensor along the dims that are cut; -1: any.
  int64_t extent_ = 0;
  int64_t other_extent_ = -1;  // of the receiving dim, where that is another one
  c10::intrusive_ptr<Collective> collective_;
};

}  // namespace meshrun
