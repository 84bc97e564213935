// What operators with windows share (convolution, pooling, padding, interpolation): where their
// results lie, and the inputs that each rank gathers for them (parallel/collectives/
// halo_geometry.h, range_exchange.h).
//
// A dimension that is cut stays cut by the same axes. Its outputs belong to the rank whose piece
// has the centre of their window, so their pieces may be uneven where the inputs' are even.
// Threads and order: all ranks of the mesh call alike. Errors: ShardTensorError.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Scalar.h"
#include "c10/util/ArrayRef.h"
#include "c10/util/FunctionRef.h"
#include "parallel/collectives/plans/halo_geometry.h"
#include "parallel/collectives/plans/range_exchange.h"
#include "parallel/shard/tensor/shard_tensor_spec.h"

namespace meshrun {

// The ranks whose parts differ along one cut dimension alone: their pieces in rank order.
struct CutDim {
  ShardMesh::Group group;
  std::vector<int64_t> sizes;
  int64_t own = 0;  // which piece is this rank's

  SplitRange own_range() const;
};

// Empty where the dimension is whole, or cut by axes of one rank alone.
std::optional<CutDim> cut_of(const ShardTensorSpec& spec, int64_t dim);

// Some rank has no part of such a tensor, where its local operators may have another graph.
bool has_empty_piece(const ShardTensorSpec& spec);

// `spec` without Partial, with `whole` dimensions whole, and every other dimension cut by axes that
// one group stands for: one of them, or all of the mesh's.
SpecPtr windowed_spec(const SpecPtr& spec, const std::vector<int64_t>& whole);

// Made once for an input layout and a key, and kept with the input's spec.
class WindowPlan {
 public:
  struct Cut {
    int64_t dim = 0;
    RangeExchange exchange;
    SplitRange piece;  // of the input
    SplitRange owned;  // outputs of this rank
    SplitRange range;  // inputs that they read; may reach beyond the ends
  };

  struct Form {
    int64_t first = 0;      // dimension that windows[0] is of
    int64_t channels = -1;  // extent of dimension first - 1 of the result; -1: the input's
    bool periodic = false;  // the ends of cut dimensions are joined
  };
  using MakeWindows = c10::function_ref<std::vector<WindowedDim>()>;
  // `key`: rule_number() of the operator's rule, then all that the windows depend on beside the
  // input's layout. `windows` is called where there is no plan yet.
  WindowPlan(const SpecPtr& input, const Form& form, c10::ArrayRef<int64_t> key,
             MakeWindows windows);

  // Plans made in this process.
  static int64_t num_made();

  const SpecPtr& result() const { return result_; }
  const std::vector<Cut>& cuts() const { return made_->cuts; }
  // Null where the dimension is whole.
  const Cut* cut(int64_t dim) const;
  // Whether this rank has anything to compute.
  bool computes() const;

  // The ranges of all cut dimensions, `padding` beyond the ends. Differentiable. May be `local`.
  at::Tensor gather(const at::Tensor& local, const c10::Scalar& padding = 0) const;
  // The result of a rank that computes nothing. It has no elements and takes part in the backward
  // pass. `keeps_input`: on the other ranks, the gradient depends on the input; here it then does
  // too, so that all ranks make the calls of a second backward pass.
  at::Tensor nothing(const at::Tensor& gathered, bool keeps_input) const;

 private:
  struct Made {
    std::vector<Cut> cuts;
    ShardLayout result;
  };
  static Made make(const ShardTensorSpec& input, const Form& form,
                   const std::vector<WindowedDim>& windows);

  std::shared_ptr<const Made> made_;
  SpecPtr result_;
};

// Arguments for each of `count` dimensions: one value stands for all.
std::vector<int64_t> for_each_dim(at::IntArrayRef values, size_t count, const char* name);

}  // namespace meshrun
