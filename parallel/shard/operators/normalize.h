// Normalisation of elements whose mean and variance need more ranks than one: what layer_norm,
// group_norm, instance_norm, batch_norm and rms_norm share.
//
//   y = (x - mean) / sqrt(variance + eps) * weight + bias
//
// On local tensors, with an exact gradient: one small all-gather an axis forward, one all-reduce of
// two sums an axis backward. Computed in float32 (float64 for float64) and rounded once. Gradients
// of weight and bias are this rank's summands. Differentiable again. Internal to parallel/shard;
// all ranks of the mesh call alike.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "parallel/shard/operators/moments.h"
#include "parallel/shard/tensor/shard_tensor_spec.h"

namespace meshrun {

struct Normalization : torch::CustomClassHolder {
  ShardMesh::Ptr mesh;
  std::vector<int64_t> axes;  // that cut what is averaged
  std::vector<int64_t> dims;  // that are averaged
  double eps = 1e-5;
  bool centered = true;  // false: rms_norm
  // Groups of channels (dimension 1): the group of each local one. Undefined: none.
  at::Tensor group_of_channel;
  int64_t groups = 0;
};

// `weight` and `bias` may be undefined; they broadcast to `input`. `moments`: where those of all
// ranks are left.
at::Tensor normalize(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const c10::intrusive_ptr<Normalization>& normalization,
                     Moments* moments = nullptr);

}  // namespace meshrun
