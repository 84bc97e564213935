// Real Fourier transforms of a field one of whose two or three transformed dimensions is cut:
// parallel/fft. All other transforms go dimension by dimension (fourier_passes.cc).
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/WrapDimUtils.h"
#include "ATen/ops/complex.h"
#include "ATen/ops/fft_fftn.h"
#include "ATen/ops/fft_ifftn.h"
#include "ATen/ops/fft_irfft.h"
#include "ATen/ops/fft_irfftn.h"
#include "ATen/ops/fft_rfft.h"
#include "ATen/ops/fft_rfftn.h"
#include "ATen/ops/real.h"
#include "fmt/format.h"
#include "parallel/base/split.h"
#include "parallel/fft/distributed_fft.h"
#include "parallel/fft/distributed_fftn.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"

namespace meshrun {
namespace {

using Dims = std::vector<int64_t>;
using GivenLengths = at::OptionalIntArrayRef;
using Norm = std::optional<std::string_view>;

enum class Direction : uint8_t { kForward, kInverse };

// A rank without samples has nothing to transform, and its part of the graph all the same.
at::Tensor local_transform(Direction direction, const at::Tensor& x, GivenLengths s,
                           const Dims& dims, Norm norm, at::IntArrayRef shape) {
  if (x.numel() == 0) {
    const at::Tensor nothing = x.reshape({-1}).sum() * 0;
    return direction == Direction::kForward ? at::complex(nothing, nothing).expand(shape)
                                            : at::real(nothing).expand(shape);
  }
  return direction == Direction::kForward ? at::fft_rfftn(x, s, dims, norm)
                                          : at::fft_irfftn(x, s, dims, norm);
}

at::Tensor distributed_transform(Direction direction, const at::Tensor& x,
                                 const FftOptions& options) {
  const bool planes = options.dim.size() == 2;
  if (direction == Direction::kForward) {
    return planes ? distributed_rfft2(x, options) : distributed_rfftn(x, options);
  }
  return planes ? distributed_irfft2(x, options) : distributed_irfftn(x, options);
}

// Lengths of the real field along dims.
Dims field_lengths(Direction direction, const at::Tensor& x, GivenLengths s, const Dims& dims) {
  Dims lengths;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t extent = x.size(dims[i]);
    const bool is_half = direction == Direction::kInverse && i + 1 == dims.size();
    const bool is_given = s.has_value() && (*s)[i] >= 0;
    lengths.push_back(is_given ? (*s)[i] : is_half ? 2 * (extent - 1) : extent);
  }
  return lengths;
}

// The axis along which the transform is distributed: one that cuts the dimension it starts with,
// else one that cuts another. Absent: all of them are whole.
std::optional<int64_t> transform_axis(const SpecPtr& spec, const Dims& dims, int64_t first) {
  std::optional<int64_t> found;
  for (int64_t axis = 0; axis < spec->mesh()->ndim(); ++axis) {
    const Placement& placement = spec->placements()[static_cast<size_t>(axis)];
    if (placement.is_shard(first)) return axis;
    if (placement.is_shard() && !found &&
        std::find(dims.begin(), dims.end(), placement.dim()) != dims.end()) {
      found = axis;
    }
  }
  return found;
}

// The layout of a transform: dims have new extents, and one of them is cut by `axis`.
SpecPtr transformed_spec(const SpecPtr& spec, const Dims& dims, const Dims& extents,
                         std::optional<int64_t> axis, int64_t cut_dim) {
  Placements placements = spec->placements();
  std::vector<DimCut> cuts = spec->layout().cuts();
  for (size_t i = 0; i < dims.size(); ++i) {
    cuts[static_cast<size_t>(dims[i])] = DimCut{{}, {extents[i]}};
    if (!axis || dims[i] != cut_dim) continue;
    const int64_t ranks = spec->mesh()->shape()[static_cast<size_t>(*axis)];
    cuts[static_cast<size_t>(cut_dim)] = DimCut{{*axis}, compute_split_shapes(extents[i], ranks)};
    placements[static_cast<size_t>(*axis)] = Shard(cut_dim);
  }
  return make_spec(spec->mesh(), ShardLayout::with_cuts(spec->mesh()->shape(),
                                                        std::move(placements), std::move(cuts)));
}

int64_t num_axes_cutting(const SpecPtr& spec, const Dims& dims) {
  return std::count_if(spec->placements().begin(), spec->placements().end(),
                       [&](const Placement& placement) {
                         return placement.is_shard() &&
                                std::find(dims.begin(), dims.end(), placement.dim()) != dims.end();
                       });
}

// By LibTorch's transforms of the last dimension and of the others, whose cut dimensions are
// fourier_passes.cc's.
at::Tensor dimension_by_dimension(Direction direction, const at::Tensor& self, GivenLengths s,
                                  const Dims& dims, Norm norm) {
  const Dims others(dims.begin(), dims.end() - 1);
  std::optional<int64_t> last_length;
  if (s.has_value() && s->back() != -1) last_length = s->back();
  GivenLengths other_lengths;
  if (s.has_value()) other_lengths = s->slice(0, others.size());
  if (direction == Direction::kForward) {
    const at::Tensor half = at::fft_rfft(self, last_length, dims.back(), norm);
    return others.empty() ? half : at::fft_fftn(half, other_lengths, others, norm);
  }
  return at::fft_irfft(others.empty() ? self : at::fft_ifftn(self, other_lengths, others, norm),
                       last_length, dims.back(), norm);
}

at::Tensor transform(Direction direction, const at::Tensor& self, GivenLengths s, Dims dims,
                     Norm norm) {
  TORCH_CHECK(!dims.empty(), "a Fourier transform must transform at least one axis");
  // As LibTorch says it, also on ranks without samples.
  TORCH_CHECK(
      self.scalar_type() != at::kBFloat16 && (self.scalar_type() != at::kHalf || self.is_cuda()),
      "Unsupported dtype ", self.scalar_type());
  for (int64_t& dim : dims) dim = at::maybe_wrap_dim(dim, self.dim());
  if (s.has_value() && s->size() != dims.size()) {
    throw ShardTensorError(
        fmt::format("fft: {} lengths for {} dimensions", s->size(), dims.size()));
  }
  const SpecPtr own = without_partial(spec_of(self));
  const int64_t num_axes = num_axes_cutting(own, dims);
  const bool can_be_distributed = dims.size() == 2 || dims.size() == 3;
  if (num_axes > 1 || (num_axes == 1 && !can_be_distributed)) {
    return dimension_by_dimension(direction, self, s, dims, norm);
  }
  const Dims field = field_lengths(direction, self, s, dims);
  Dims extents = field;
  if (direction == Direction::kForward) extents.back() = field.back() / 2 + 1;

  // The forward transform starts with pieces of dims[1] and ends with those of dims[0].
  const int64_t begin = dims[can_be_distributed && direction == Direction::kForward ? 1 : 0];
  const int64_t end = dims[can_be_distributed && direction == Direction::kInverse ? 1 : 0];
  const std::optional<int64_t> axis = transform_axis(own, dims, begin);
  SpecPtr start = with_whole_dims(own, dims);
  if (axis) {
    Placements placements = start->placements();
    placements[static_cast<size_t>(*axis)] = Shard(begin);
    start = placements == own->placements() ? own : target_spec(own, std::move(placements));
  }
  const at::Tensor local = to_local(redistribute(self, start));
  if (!axis) {
    const SpecPtr result = transformed_spec(start, dims, extents, {}, end);
    return from_local(local_transform(direction, local, s, dims, norm, result->local_shape()),
                      result);
  }
  const SpecPtr result = transformed_spec(with_whole_dims(start, dims), dims, extents, axis, end);
  FftOptions options{.s = {},
                     .dim = {},
                     .norm = std::string(norm.value_or("backward")),
                     .group = GroupArgument(own->mesh()->axis_group(*axis))};
  for (const int64_t length : field) options.s.emplace_back(length);
  for (const int64_t dim : dims) options.dim.emplace_back(dim);
  options.input_sizes = start->shard_sizes(*axis);
  options.output_sizes = result->shard_sizes(*axis);
  return from_local(distributed_transform(direction, local, options), result);
}

template <Direction direction>
at::Tensor planes(const at::Tensor& self, GivenLengths s, at::IntArrayRef dim, Norm norm) {
  return transform(direction, self, s, dim.vec(), norm);
}

template <Direction direction>
at::Tensor volumes(const at::Tensor& self, GivenLengths s, at::OptionalIntArrayRef dim, Norm norm) {
  Dims dims;
  if (dim.has_value()) {
    dims = dim->vec();
  } else {
    const auto count = s.has_value() ? static_cast<int64_t>(s->size()) : self.dim();
    for (int64_t d = self.dim() - count; d < self.dim(); ++d) dims.push_back(d);
  }
  return transform(direction, self, s, std::move(dims), norm);
}

const Movement kTransform = {
    "any Shard of other dimensions",
    "one axis on one of two or three transformed dimensions: one transposition along it "
    "(parallel/fft), dim[1] in and dim[0] out, for the inverse the other way round; several axes: "
    "as _fft_c2c, dimension by dimension",
    "the same way back"};

const bool kRegistered =
    OperatorFamily("Fourier transforms")
        .above_autograd("aten::fft_rfft2", &planes<Direction::kForward>, kTransform)
        .above_autograd("aten::fft_irfft2", &planes<Direction::kInverse>, kTransform)
        .above_autograd("aten::fft_rfftn", &volumes<Direction::kForward>, kTransform)
        .above_autograd("aten::fft_irfftn", &volumes<Direction::kInverse>, kTransform)
        .registered();

}  // namespace
}  // namespace meshrun
