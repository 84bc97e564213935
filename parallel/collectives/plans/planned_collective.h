// A collective on pieces of known sizes, prepared once: a call looks nothing up and asks nothing of
// its peers.
//
//   const PlannedCollective gather(CollectiveSpec::all_gather_v({3, 3, 2}, 0), group);
//   at::Tensor whole = gather(piece);
//
// Shapes: those of the collective that the spec describes; dims count from the front. Results are
// contiguous, in new memory. Dtypes: all that the backend moves; sums of 16-bit floats are made in
// float32. Without a gradient: callers have a backward of their own.
//
// Threads: any, also one plan on several; all ranks of the group make its calls in the same order.
// Errors: from the constructor those of GroupArgument, and c10::ValueError for sizes that do not
// fit the group, on this rank; from calls, on every rank that called: a tensor that does not fit,
// ranks whose specs differ (parallel/base/collective_errors.h).
#pragma once

#include <string>

#include "ATen/core/Tensor.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/comm/interface/collective_spec.h"
#include "parallel/manager/group_argument.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace meshrun {

struct Collective;
enum class Pass : bool;

class PlannedCollective {
 public:
  PlannedCollective(CollectiveSpec spec, const GroupArgument& group);
  PlannedCollective(const PlannedCollective&);
  PlannedCollective& operator=(const PlannedCollective&);
  ~PlannedCollective();

  // `work`: gets the Work of the operation, which is still under way; null: the call waits for it.
  at::Tensor operator()(const at::Tensor& tensor,
                        c10::intrusive_ptr<c10d::Work>* work = nullptr) const;
  // In place of a call that this rank cannot make: raises `problem` here and on the other ranks.
  [[noreturn]] void refuse(const std::string& problem) const;

  const Collective& collective() const { return *collective_; }
  // For a call with `tensor`: the collective, or one with what does not fit as its problem.
  c10::intrusive_ptr<Collective> fitted(const at::Tensor& tensor, Pass pass) const;

 private:
  c10::intrusive_ptr<Collective> collective_;
};

}  // namespace meshrun
