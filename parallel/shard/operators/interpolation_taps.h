// What each output along an interpolated dimension is a weighted sum of: positions and weights, in
// LibTorch's formulas of the whole dimension.
//
// Internal to parallel/shard/operators. Threads: any.
#pragma once

#include <cstdint>
#include <optional>

#include "ATen/core/Tensor.h"
#include "c10/util/SmallVector.h"
#include "parallel/base/split.h"
#include "parallel/collectives/plans/halo_geometry.h"

namespace meshrun {

// The antialiased ones have filters that get wider where the extent shrinks.
enum class InterpolationMode : uint8_t {
  kNearest,
  kNearestExact,
  kLinear,
  kCubic,
  kAntialiasedLinear,
  kAntialiasedCubic,
  kAntialiasedLanczos,
};

struct Interpolation {
  InterpolationMode mode;
  bool align_corners;
  // LibTorch computes positions in the tensor's dtype.
  bool in_double;
  // LibTorch's antialiased kernels for the CPU do nothing along a dimension that keeps its extent.
  bool on_cpu;

  bool picks() const {
    return mode == InterpolationMode::kNearest || mode == InterpolationMode::kNearestExact;
  }
  bool antialiases() const { return mode >= InterpolationMode::kAntialiasedLinear; }
};

struct InterpolationTaps {
  // One or more, which never decrease.
  c10::SmallVector<int64_t, 8> positions;
  c10::SmallVector<double, 8> weights;
};

class InterpolatedDim {
 public:
  // `scale`: outputs for each input where the caller says so; else the ratio of the extents.
  InterpolatedDim(const Interpolation& how, int64_t inputs, int64_t outputs,
                  std::optional<double> scale)
      : how_(how), inputs_(inputs), outputs_(outputs), scale_(scale) {}

  int64_t outputs() const { return outputs_; }
  InterpolationTaps taps(int64_t output) const;
  WindowedDim windows() const;
  // Some of LibTorch's kernels take the scale and some do not, which depends on the device, on the
  // memory format, and on forward or backward.
  bool has_doubtful_scale() const;
  // `outputs` from inputs that begin at position `first`, along `dim`. Differentiable.
  at::Tensor apply(const at::Tensor& inputs, int64_t dim, int64_t first, SplitRange outputs) const;

 private:
  template <typename Number>
  InterpolationTaps linear_taps(int64_t output) const;
  template <typename Number>
  InterpolationTaps cubic_taps(int64_t output) const;
  template <typename Number>
  InterpolationTaps antialiased_taps(int64_t output) const;
  template <typename Number>
  InterpolationTaps smooth_taps(int64_t output) const;

  Interpolation how_;
  int64_t inputs_;
  int64_t outputs_;
  std::optional<double> scale_;
};

}  // namespace meshrun
