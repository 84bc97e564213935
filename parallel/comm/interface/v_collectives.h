// Collectives on pieces of uneven size, along any dimension: what a backend offers beyond c10d's
// methods, and what parallel/collectives is built on.
//
// A piece is a slice of a tensor along one dimension; `sizes` are the extents of the ranks' pieces,
// in rank order. Outputs are the caller's and are written in place, each piece where it belongs:
// there is no buffer per peer and nothing is concatenated. All other extents are equal on all
// ranks. Invalid arguments (a negative size, a dim out of range) are passed only as `problem`.
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

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/base/strided_span.h"
#include "torch/csrc/distributed/c10d/Types.hpp"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace meshrun {

// The elements that a rank sends to each rank and that it expects from each, which are compared
// pair by pair. Empty: the digest of a comparison says it all.
struct ComparedRow {
  const char* call = nullptr;  // "all_to_all_v"; static, and equal on all ranks
  std::vector<int64_t> sent, expected;
};

// What a call says beside its tensors. Defaults are those of most calls; cheap to make.
struct VCall {
  // What is wrong with this rank's arguments; empty: nothing. The call is made all the same, since
  // the other ranks wait for it; tensors and sizes are then not looked at.
  std::string problem;
  // Compared between the ranks, like everything else that all of them must say alike: kind, dtype,
  // sizes, dims, extents beside dim, root, use_fp32.
  bool requires_grad = false;
  // Of reduce_scatter_v: float16 and bfloat16 are added in float32, rounded once; false: in their
  // own dtype. Elsewhere only compared.
  bool use_fp32 = true;
  // Whatever else the ranks must agree on, as a number: the whole table of an indexed exchange.
  uint64_t agreed = 0;
  // Appended to this rank's side of a mismatch's sentence; called at most once, before the call
  // returns or when the ranks disagree. Must own what it reads. Absent: sizes and dims say it all.
  std::function<std::string()> details;
  // Of all_to_all_v, where takes_fill(): puts the input's slices together as they are sent,
  // straight into the receiver's memory where that can be reached. The input is then looked at for
  // its shape and dtype alone, and nothing of it stays here. Must own what it reads; called on any
  // thread, until the Work is done.
  Fill fill;
  // The Work is waited for later, and somebody else moves it forward meanwhile.
  bool async = false;
  // c10d's: 0 and less is the group's.
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  // Of CallComparer::compare() alone, before an all-to-all.
  ComparedRow row;
};

class VCollectives {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  virtual ~VCollectives() = default;

  // Whether VCall::fill is taken.
  virtual bool takes_fill() const { return false; }

  // Every rank's piece on every rank. `input`: this rank's, sizes[rank] along dim. `output`: all of
  // them, sum(sizes) along dim; its slice of this rank may be `input` itself.
  virtual WorkPtr all_gather_v(const at::Tensor& output, const at::Tensor& input,
                               at::IntArrayRef sizes, int64_t dim, VCall call) = 0;
  // The adjoint: rank r gets the sum of all ranks' slice r, in rank order; on several hosts of
  // several ranks a backend may add each host's first. `input`: sum(sizes) along dim. `output`:
  // sizes[rank].
  virtual WorkPtr reduce_scatter_v(const at::Tensor& output, const at::Tensor& input,
                                   at::IntArrayRef sizes, int64_t dim, VCall call) = 0;
  // As all_gather_v, at `root` alone; `output` is not looked at elsewhere.
  virtual WorkPtr gather_v(const at::Tensor& output, const at::Tensor& input, at::IntArrayRef sizes,
                           int64_t dim, int root, VCall call) = 0;
  // The adjoint. `input` is looked at on `root` alone.
  virtual WorkPtr scatter_v(const at::Tensor& output, const at::Tensor& input,
                            at::IntArrayRef sizes, int64_t dim, int root, VCall call) = 0;
  // Slice r of `input`, input_sizes[r] along input_dim, goes to rank r; what comes from rank r is
  // written to slice r of `output`, output_sizes[r] along output_dim. The two dims may differ (a
  // transpose). Elements travel in row-major order of the slice, so a slice has the same extents at
  // both ends. Sizes differ between ranks: what a rank sends is compared with what its receiver
  // expects, also where one of them is 0.
  // Own piece: where input_sizes[rank] is 0, slice `rank` of the output is left as it is; the
  // caller has written it. Where output_sizes[rank] is 0, slice `rank` of the input stays at home;
  // the caller reads it where it is.
  virtual WorkPtr all_to_all_v(const at::Tensor& output, at::IntArrayRef output_sizes,
                               int64_t output_dim, const at::Tensor& input,
                               at::IntArrayRef input_sizes, int64_t input_dim, VCall call) = 0;
};

}  // namespace meshrun
