// What operators with windows share (convolution, pooling, padding, interpolation): where their
// results lie, and the inputs that each rank gathers for them (parallel/collectives/
// halo_geometry.h, range_exchange.h).
//
// A dimension that is cut stays cut by the same axes. Its outputs belong to the rank whose piece
// has the centre of their window, so their pieces may be uneven where the inputs' are even.
// Threads and order: all ranks of the mesh call alike. Errors: ShardTensorError.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Scalar.h"
#include "parallel/collectives/halo_geometry.h"
#include "parallel/collectives/range_exchange.h"
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

// `spec` without Partial, with `whole` dimensions whole, and every other dimension cut by axes that
// one group stands for: one of them, or all of the mesh's.
SpecPtr windowed_spec(const SpecPtr& spec, const std::vector<int64_t>& whole);

class WindowPlan {
 public:
  struct Cut {
    int64_t dim = 0;
    RangeExchange exchange;
    SplitRange piece;  // of the input
    SplitRange owned;  // outputs of this rank
    SplitRange range;  // inputs that they read; may reach beyond the ends
  };

  // windows[i] is of dimension first + i. `channels`: extent of dimension first - 1 of the result;
  // -1: the input's. `periodic`: the ends of cut dimensions are joined.
  WindowPlan(const SpecPtr& input, int64_t first, const std::vector<WindowedDim>& windows,
             int64_t channels = -1, bool periodic = false);

  const SpecPtr& result() const { return result_; }
  const std::vector<Cut>& cuts() const { return cuts_; }
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
  SpecPtr result_;
  std::vector<Cut> cuts_;
};

// Arguments for each of `count` dimensions: one value stands for all.
std::vector<int64_t> for_each_dim(at::IntArrayRef values, size_t count, const char* name);

}  // namespace meshrun
