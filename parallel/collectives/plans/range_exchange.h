// Each rank gathers a range of a cut dimension: halos, in the general form that operators with
// windows need (halo_geometry.h). Planned once; a call asks nothing of its peers.
//
//   RangeExchange exchange(2, sizes, windows.ranges(sizes), group);
//   at::Tensor wide = exchange.gather(x);      // differentiable
//
// and in steps, for callers that compute while halos travel and that write their own backward:
//
//   AsyncTensor halo = exchange.receive_async(x);     // what others have of the range
//   ...                                               // the inner part, from x alone
//   at::Tensor wide = exchange.assemble(x, halo.wait());
//   ...                                               // backward, from the gradient of `wide`
//   AsyncTensor back = exchange.send_back_async(exchange.received_part(wide_gradient));
//   at::Tensor gradient = exchange.own_part(wide_gradient);
//   exchange.add(gradient, back.wait());
//
// Shapes: x has sizes[rank] along dim, the result ranges[rank].size(), halos what is received; all
// other extents are equal on all ranks. One message to each neighbour, of the bytes that it needs.
// Where no rank needs anything of another one no rank calls, unless `compares` asks for it.
//
// Backward of gather: the gradients of halos travel back and are added to one's own in a fixed
// order (float16 and bfloat16 in float32 where several meet in one position). Differentiable of any
// order. A backward pass runs on all ranks of the group or on none: see tie.h.
//
// Threads: any; all ranks of the group make its calls in the same order. Errors: a tensor that does
// not fit, and ranks whose sizes or ranges differ, on every rank that called
// (parallel/base/collective_errors.h). Corresponds to the peer's halo_padding and unhalo_padding.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Scalar.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/base/arguments.h"
#include "parallel/collectives/call/async_tensor.h"
#include "parallel/collectives/plans/halo_geometry.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

struct RangeExchangeState;

class RangeExchange {
 public:
  struct Options {
    BoolArgument periodic = false;
    // Calls even where nothing travels, so that ranks that disagree hear of it.
    BoolArgument compares = false;
    // What is wrong with this rank's arguments: raised on every rank in place of a call.
    std::string problem;
  };
  // dim counts from the front. One size and one range for each rank, unless there is a problem.
  RangeExchange(IntArgument dim, const std::vector<int64_t>& sizes,
                const std::vector<SplitRange>& ranges, const GroupArgument& group,
                const Options& options);
  RangeExchange(IntArgument dim, const std::vector<int64_t>& sizes,
                const std::vector<SplitRange>& ranges, const GroupArgument& group = {})
      : RangeExchange(dim, sizes, ranges, group, Options()) {}
  // What autograd nodes keep of one.
  using StatePtr = c10::intrusive_ptr<RangeExchangeState>;
  explicit RangeExchange(StatePtr state);
  RangeExchange(const RangeExchange&);
  RangeExchange& operator=(const RangeExchange&);
  ~RangeExchange();

  int64_t dim() const;
  const RangeTransfer& transfer() const;
  // The range is this rank's piece, and nothing travels on any rank.
  bool is_identity() const;

  // Differentiable. The paddings of the range hold `padding`. The tensor itself where
  // is_identity().
  at::Tensor gather(const at::Tensor& tensor, const c10::Scalar& padding = 0) const;
  // The adjoint: gradients of ranges become gradients of pieces.
  at::Tensor scatter(const at::Tensor& ranges) const;

  // Differentiable, too: the parts of the range that others have, in rank order.
  at::Tensor receive(const at::Tensor& tensor) const;
  AsyncTensor receive_async(const at::Tensor& tensor) const;
  at::Tensor send_back(const at::Tensor& halo) const;
  AsyncTensor send_back_async(const at::Tensor& halo) const;

  // Local. assemble keeps the tensor's memory format; assemble_part makes positions
  // [part.begin, part.end) of the range alone, counted from its first one. Both may return the
  // tensor itself or a view of it.
  at::Tensor assemble(const at::Tensor& tensor, const at::Tensor& halo,
                      const c10::Scalar& padding = 0) const;
  at::Tensor assemble_part(const at::Tensor& tensor, const at::Tensor& halo, SplitRange part,
                           const c10::Scalar& padding = 0) const;
  // Parts of a tensor that has the range's extent: what was received, and a new tensor of this
  // rank's piece with the rest as zeros.
  at::Tensor received_part(const at::Tensor& range) const;
  at::Tensor own_part(const at::Tensor& range) const;
  // Adds what send_back returned, in place.
  void add(at::Tensor& gradient, const at::Tensor& returned) const;

 private:
  StatePtr state_;
};

}  // namespace meshrun
