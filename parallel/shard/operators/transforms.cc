// Real Fourier transforms of a field whose transformed dimensions are cut: parallel/fft. All other
// transforms make these dimensions whole.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/WrapDimUtils.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/_fft_c2c.h"
#include "ATen/ops/_fft_c2r.h"
#include "ATen/ops/_fft_r2c.h"
#include "ATen/ops/complex.h"
#include "ATen/ops/fft_irfftn.h"
#include "ATen/ops/fft_rfftn.h"
#include "ATen/ops/real.h"
#include "ATen/ops/zeros.h"
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

at::Tensor transform(Direction direction, const at::Tensor& self, GivenLengths s, Dims dims,
                     Norm norm) {
  // As LibTorch says it, also on ranks without samples.
  TORCH_CHECK(
      self.scalar_type() != at::kBFloat16 && (self.scalar_type() != at::kHalf || self.is_cuda()),
      "Unsupported dtype ", self.scalar_type());
  for (int64_t& dim : dims) dim = at::maybe_wrap_dim(dim, self.dim());
  if (s.has_value() && s->size() != dims.size()) {
    throw ShardTensorError(
        fmt::format("fft: {} lengths for {} dimensions", s->size(), dims.size()));
  }
  const Dims field = field_lengths(direction, self, s, dims);
  Dims extents = field;
  if (direction == Direction::kForward) extents.back() = field.back() / 2 + 1;

  // The forward transform starts with pieces of dims[1] and ends with those of dims[0].
  const bool can_be_distributed = dims.size() == 2 || dims.size() == 3;
  const int64_t begin = dims[can_be_distributed && direction == Direction::kForward ? 1 : 0];
  const int64_t end = dims[can_be_distributed && direction == Direction::kInverse ? 1 : 0];
  const SpecPtr own = without_partial(spec_of(self));
  const std::optional<int64_t> axis =
      can_be_distributed ? transform_axis(own, dims, begin) : std::nullopt;
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

// One operator of LibTorch on the dimensions `dims`, which become whole; the others stay cut.
// `last_extent`: of dims.back() in the result.
template <typename Call>
at::Tensor along_whole_dims(const at::Tensor& self, at::IntArrayRef dims, int64_t last_extent,
                            at::ScalarType dtype, const Call& call) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  Dims whole = dims.vec();
  for (int64_t& dim : whole) dim = at::maybe_wrap_dim(dim, self.dim());
  const SpecPtr start = with_whole_dims(spec_of(self), whole);
  const at::Tensor local = redistribute_local(local_of(self), spec_of(self), start);
  std::vector<DimCut> cuts = start->layout().cuts();
  if (!whole.empty()) cuts[static_cast<size_t>(whole.back())] = {{}, {last_extent}};
  const SpecPtr result = make_spec(
      start->mesh(),
      ShardLayout::with_cuts(start->mesh()->shape(), start->placements(), std::move(cuts)));
  return wrap(local.numel() == 0 ? at::zeros(result->local_shape(), local.options().dtype(dtype))
                                 : call(local),
              result);
}

int64_t last_of(const at::Tensor& self, at::IntArrayRef dims) {
  return dims.empty() ? 1 : self.size(dims.back());
}

at::Tensor real_to_complex(const at::Tensor& self, at::IntArrayRef dims, int64_t normalization,
                           bool onesided) {
  const int64_t extent = last_of(self, dims);
  return along_whole_dims(
      self, dims, onesided ? extent / 2 + 1 : extent, c10::toComplexType(self.scalar_type()),
      [&](const at::Tensor& local) { return at::_fft_r2c(local, dims, normalization, onesided); });
}

at::Tensor complex_to_complex(const at::Tensor& self, at::IntArrayRef dims, int64_t normalization,
                              bool forward) {
  return along_whole_dims(
      self, dims, last_of(self, dims), self.scalar_type(),
      [&](const at::Tensor& local) { return at::_fft_c2c(local, dims, normalization, forward); });
}

at::Tensor complex_to_real(const at::Tensor& self, at::IntArrayRef dims, int64_t normalization,
                           int64_t last_dim_size) {
  return along_whole_dims(self, dims, last_dim_size, c10::toRealValueType(self.scalar_type()),
                          [&](const at::Tensor& local) {
                            return at::_fft_c2r(local, dims, normalization, last_dim_size);
                          });
}

const Movement kWhole = {"any Shard of other dimensions",
                         "a Partial is reduced; a cut transformed dimension is gathered",
                         "the same operators"};

const Movement kTransform = {
    "any Shard of other dimensions; one axis on a transformed one",
    "one transposition along the axis that cuts a transformed dimension (parallel/fft): dim[1] in "
    "and "
    "dim[0] out, for the inverse the other way round; further axes on them become Replicate first",
    "the same transposition back"};

const bool kRegistered =
    OperatorFamily("Fourier transforms")
        .above_autograd("aten::fft_rfft2", &planes<Direction::kForward>, kTransform)
        .above_autograd("aten::fft_irfft2", &planes<Direction::kInverse>, kTransform)
        .above_autograd("aten::fft_rfftn", &volumes<Direction::kForward>, kTransform)
        .above_autograd("aten::fft_irfftn", &volumes<Direction::kInverse>, kTransform)
        .below_autograd("aten::_fft_r2c", &real_to_complex, kWhole)
        .below_autograd("aten::_fft_c2c", &complex_to_complex, kWhole)
        .below_autograd("aten::_fft_c2r", &complex_to_real, kWhole)
        .registered();

}  // namespace
}  // namespace meshrun
