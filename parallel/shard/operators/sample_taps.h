// Samples of an image at the points of a grid, as LibTorch's grid_sampler has them of the whole
// image, where a rank has a part of the image alone.
//
// A sample is a weighted sum of elements, its taps. Positions and weights are computed from the
// extents of the whole image in LibTorch's formulas. So ranks that have one grid agree which
// elements a point reads, at whole positions too, where a rounding would choose another element.
// Those of 16-bit grids are computed in float32, where LibTorch's kernels round some of them to 16
// bits. Differentiable of any order. Internal to parallel/shard/operators. Threads: any.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/util/ArrayRef.h"
#include "parallel/base/split.h"

namespace meshrun {

// The values of at::native::GridSamplerInterpolation and GridSamplerPadding.
struct SamplingModes {
  int64_t interpolation = 0;
  int64_t padding = 0;
  bool align_corners = false;
};

// What every point reads along one dimension of the image: [batch, points].
struct SampleTap {
  at::Tensor position;  // a whole number in the grid's floating-point type, without history
  at::Tensor weight;    // undefined: 1
};
using SampleTaps = std::vector<SampleTap>;

// By spatial dimension of the image. `extents`: of the whole image.
std::vector<SampleTaps> sample_taps(const at::Tensor& grid, at::IntArrayRef extents,
                                    const SamplingModes& modes);

// Two int64 numbers on the grid's device: 1 - begin and end of the least range that has all
// positions within the image. Where there are none: the least such numbers of an empty range.
at::Tensor read_bounds(const SampleTaps& taps, int64_t extent);

// Sums over the taps that lie within `ranges`: [batch, channels, points]. `image` has the ranges
// of the whole one's spatial dimensions, which may be empty.
at::Tensor sum_of_taps(const at::Tensor& image, const std::vector<SplitRange>& ranges,
                       const std::vector<SampleTaps>& taps);

}  // namespace meshrun
