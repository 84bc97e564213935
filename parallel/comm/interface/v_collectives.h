// Collectives on pieces of uneven size, along any dimension: what a backend offers beyond c10d's
// methods, and what parallel/collectives is built on. collective_spec.h describes a call.
//
// A piece is a slice of a tensor along one dimension. Outputs are the caller's and are written in
// place, each piece where it belongs: there is no buffer per peer and nothing is concatenated. All
// other extents are equal on all ranks.
//
//   a backend of ours      implements it itself, with the header check: a wrong call is an error
//                          on all ranks
//   a backend of c10d's    PointToPointVCollectives: sends and receives of slices, at once where
//                          the backend can. Headers are compared by the group's backend for the
//                          CPU with MESHRUN_CHECK_COLLECTIVES=1 (call_comparer.h); else a `problem`
//                          is raised here alone. Gloo's all_to_all_v compares by an all-gather
//                          (point_to_point/gathered_comparison.h)
//
// Threads and order: those of c10d::Backend. Errors: collective_errors.h, from the Work.
#pragma once

#include "ATen/core/Tensor.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/comm/interface/collective_spec.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace meshrun {

class VCollectives {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  virtual ~VCollectives() = default;

  // Whether CollectiveSpec::fill is taken.
  virtual bool takes_fill() const { return false; }

  // `output` and `input` have the pieces of `spec` along its dims. A tensor of the root alone is
  // not looked at elsewhere.
  //
  //   kAllGatherV       the output's slice of this rank may be `input` itself
  //   kReduceScatterV   added in rank order; on several hosts of several ranks a backend may add
  //                     each host's first
  //   kAllToAllV        the two dims may differ (a transpose): elements travel in row-major order
  //                     of the slice, which has the same extents at both ends. Where
  //                     cut.sizes[rank] is 0, slice `rank` of the output is left as it is, since
  //                     the caller has written it; where received.sizes[rank] is 0, slice `rank`
  //                     of the input stays where it is, and the caller reads it there
  virtual WorkPtr run(const at::Tensor& output, const at::Tensor& input, CollectiveSpec spec) = 0;
};

}  // namespace meshrun
