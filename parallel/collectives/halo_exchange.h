// Extends each rank's piece by what its neighbours have on both sides: a halo exchange.
//
//   before (sizes 3, 1, 2)      after, width {1, 2}          periodic
//   rank 0  [a b c]             [a b c|d e]                  [f|a b c|d e]
//   rank 1  [d]                 [c|d|e f]                    [c|d|e f]
//   rank 2  [e f]               [d|e f]                      [d|e f|a b]
//
// Shapes: `tensor` has sizes[rank] along dim; the result has up to width.low more before and
// width.high more after. Nothing is added beyond the ends of the whole, unless `periodic` joins the
// ends. A halo may span several neighbours; pieces may be empty, and get halos too. One's own part
// begins at min(width.low, what lies before the piece), periodic at width.low. All other extents
// are equal on all ranks, and so are sizes, dim, width and periodic. Dtypes: all that the backend
// moves. The result is new memory.
//
// Cost: one message to each neighbour, of exact bytes; nothing is asked of peers. Without `sizes`
// all pieces are as large as this rank's.
//
// Backward: the halos' gradients travel back and are added to the piece's, in a fixed order
// (float16 and bfloat16 in float32 where several meet in one position). Differentiable of any
// order. A backward pass runs on all ranks of the group or on none: see tie.h.
//
// Threads: any; all ranks of the group make its calls in the same order. Errors: those of
// GroupArgument on this rank; on every rank that called: an undefined tensor, a dim out of range, a
// negative width, periodic ones beyond the whole, sizes that do not fit, ranks that disagree
// (parallel/base/collective_errors.h). Corresponds to the peer's halo_padding.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/base/sizes.h"
#include "parallel/collectives/call/async_tensor.h"
#include "parallel/collectives/plans/range_exchange.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

struct HaloWidth {
  IntArgument low = 0;
  IntArgument high = 0;
};

at::Tensor halo_exchange(const at::Tensor& tensor, IntArgument dim, const HaloWidth& width,
                         const Sizes& sizes = {}, BoolArgument periodic = false,
                         const GroupArgument& group = {});

// Halos that travel. Until wait() the caller computes what needs none of them, from the piece.
class PendingHalo {
 public:
  // The result of halo_exchange; every call returns the same tensor. Its graph is that of the call
  // and of a concatenation. Errors: the exchange's.
  at::Tensor wait();
  bool is_completed() const { return halo_.is_completed(); }
  // How many positions of the result lie before one's own part.
  int64_t low() const { return low_; }

 private:
  friend PendingHalo halo_exchange_async(const at::Tensor&, IntArgument, const HaloWidth&,
                                         const Sizes&, BoolArgument, const GroupArgument&);
  PendingHalo(RangeExchange exchange, at::Tensor tensor, int64_t low);

  RangeExchange exchange_;
  at::Tensor tensor_;
  AsyncTensor halo_;
  int64_t low_ = 0;
  at::Tensor result_;
};

PendingHalo halo_exchange_async(const at::Tensor& tensor, IntArgument dim, const HaloWidth& width,
                                const Sizes& sizes = {}, BoolArgument periodic = false,
                                const GroupArgument& group = {});

}  // namespace meshrun
