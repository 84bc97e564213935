// Samples of images at the points of a grid.
//
// A rank computes the samples of its own points, channels and images, from the whole of an image.
// Where an image is cut, a grid with fewer points than the image has stays whole, and each rank
// sums up the taps that it has (Partial). Else the grid is cut alike: ranks agree on the range that
// the points of each one read, and gather it.
#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/native/GridSamplerUtils.h"
#include "ATen/ops/affine_grid_generator.h"
#include "ATen/ops/full.h"
#include "ATen/ops/grid_sampler.h"
#include "ATen/ops/grid_sampler_2d.h"
#include "ATen/ops/grid_sampler_3d.h"
#include "ATen/ops/zeros.h"
#include "parallel/collectives/tie.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/operators/aligned.h"
#include "parallel/shard/operators/sample_taps.h"
#include "parallel/shard/operators/windows.h"
#include "parallel/shard/redistribute/redistribution_plans.h"

namespace meshrun {
namespace {

// The rule of layouts.
const char kSamplingRule = 0;

int64_t spatial_count(at::IntArrayRef shape, size_t first, size_t end) {
  return std::accumulate(shape.begin() + first, shape.begin() + end, int64_t{1},
                         std::multiplies<>());
}

// Where image and grid have to lie.
struct SamplingPlacements {
  Placements image, grid;
};

// An axis cuts the images of the batch on both, or the channels of the image, or the points of the
// grid; or a spatial dimension of the image, and then the grid may be whole or cut.
SamplingPlacements sampling_placements(const ShardTensorSpec& image, const ShardTensorSpec& grid) {
  SamplingPlacements to = {image.placements(), grid.placements()};
  const std::vector<int64_t>& mesh = image.mesh()->shape();
  const int64_t elements = spatial_count(image.global_shape(), 0, image.global_shape().size());
  const bool grid_moves =
      spatial_count(grid.global_shape(), 0, grid.global_shape().size()) <= elements;
  int64_t true_axes = 0;
  for (size_t axis = 0; axis < mesh.size(); ++axis) {
    true_axes += mesh[axis] > 1;
    Placement& of_image = to.image[axis];
    Placement& of_grid = to.grid[axis];
    if (of_image.is_shard(0) || of_grid.is_shard(0)) {
      of_image = of_grid = Shard(0);
    } else if (of_image.is_shard(1) && of_grid.is_shard()) {
      (grid_moves ? of_grid : of_image) = Replicate();
    }
  }
  const auto ndim = static_cast<size_t>(image.ndim());
  const bool sums_up = spatial_count(grid.global_shape(), 1, ndim - 1) <
                       spatial_count(image.global_shape(), 2, ndim);
  for (int64_t dim = 2; dim < image.ndim(); ++dim) {
    std::vector<size_t> axes;
    int64_t with_ranks = 0;
    for (size_t axis = 0; axis < mesh.size(); ++axis) {
      if (!to.image[axis].is_shard(dim)) continue;
      axes.push_back(axis);
      with_ranks += mesh[axis] > 1;
    }
    // One group has to stand for the axes that cut a dimension (windows.h).
    if (with_ranks > 1 && with_ranks < true_axes) {
      const auto first =
          std::find_if(axes.begin(), axes.end(), [&](size_t axis) { return mesh[axis] > 1; });
      for (const size_t axis : axes) {
        if (axis != *first) to.image[axis] = Replicate();
      }
      axes = {*first};
    }
    const bool is_whole = std::all_of(axes.begin(), axes.end(),
                                      [&](size_t axis) { return to.grid[axis].is_replicate(); });
    if (is_whole && sums_up) continue;
    for (const size_t axis : axes) {
      if (to.grid[axis].is_replicate()) to.grid[axis] = Shard(dim - 1);
    }
  }
  return to;
}

ShardLayout with_batch_of(const ShardLayout& layout, const ShardLayout& other) {
  std::vector<DimCut> cuts = layout.cuts();
  cuts[0] = other.cuts()[0];
  return ShardLayout::with_cuts(layout.mesh_shape(), layout.placements(), std::move(cuts));
}

// Layouts of image, grid and samples.
std::vector<ShardLayout> sampling_layouts(const SpecPtr& image, const SpecPtr& grid) {
  const SpecPtr from_image = without_partial(image);
  const SpecPtr from_grid = with_whole_dims(grid, {grid->ndim() - 1});
  const SamplingPlacements to = sampling_placements(*from_image, *from_grid);
  ShardLayout image_layout = target_spec(from_image, to.image)->layout();
  ShardLayout grid_layout = target_spec(from_grid, to.grid)->layout();
  const std::vector<int64_t>& batch = image_layout.cuts()[0].axes;
  if (from_image->layout().cuts()[0].axes != batch && from_grid->layout().cuts()[0].axes == batch) {
    image_layout = with_batch_of(image_layout, grid_layout);
  } else {
    grid_layout = with_batch_of(grid_layout, image_layout);
  }
  std::vector<DimCut> cuts = image_layout.cuts();
  std::copy(grid_layout.cuts().begin() + 1, grid_layout.cuts().end() - 1, cuts.begin() + 2);
  Placements placements = image_layout.placements();
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    const Placement& of_grid = to.grid[axis];
    if (of_grid.is_shard() && of_grid.dim() > 0) {
      placements[axis] = Shard(of_grid.dim() + 1);
    } else if (placements[axis].is_shard() && placements[axis].dim() > 1) {
      placements[axis] = Partial();
    }
  }
  ShardLayout samples =
      ShardLayout::with_cuts(image_layout.mesh_shape(), std::move(placements), std::move(cuts));
  return {std::move(image_layout), std::move(grid_layout), std::move(samples)};
}

// The dimensions of `image` that ranks exchange: cut ones, where the points are cut, too.
std::vector<int64_t> exchanged_dims(const ShardTensorSpec& image, const ShardTensorSpec& samples) {
  std::vector<int64_t> dims;
  for (int64_t dim = 2; dim < image.ndim(); ++dim) {
    if (!cut_of(image, dim)) continue;
    const int64_t axis = image.layout().cuts()[static_cast<size_t>(dim)].axes.front();
    if (samples.placements()[static_cast<size_t>(axis)].is_shard()) dims.push_back(dim);
  }
  return dims;
}

// The ranges of `dims` that the ranks of each piece read, all of them together: those that gather
// along one dimension have one range of every other one. One small all-reduce an axis; the host
// waits for it.
std::vector<std::vector<SplitRange>> read_ranges(const SpecPtr& image,
                                                 const std::vector<int64_t>& dims,
                                                 const std::vector<SampleTaps>& taps) {
  int64_t rows = 0;
  for (const int64_t dim : dims) rows += static_cast<int64_t>(cut_of(*image, dim)->sizes.size());
  const at::TensorOptions options = taps[0][0].position.options().dtype(at::kLong);
  const at::Tensor bounds = at::full({rows, 2}, std::numeric_limits<int32_t>::min(), options);
  int64_t row = 0;
  for (const int64_t dim : dims) {
    const CutDim cut = *cut_of(*image, dim);
    bounds.select(0, row + cut.own)
        .copy_(read_bounds(taps[static_cast<size_t>(dim) - 2],
                           image->global_shape()[static_cast<size_t>(dim)]));
    row += static_cast<int64_t>(cut.sizes.size());
  }
  all_reduce_over(image, dims, bounds, PartialOp::kMax);
  const at::Tensor agreed = bounds.cpu();
  const auto* numbers = agreed.const_data_ptr<int64_t>();
  std::vector<std::vector<SplitRange>> ranges;
  for (const int64_t dim : dims) {
    ranges.emplace_back();
    for (size_t piece = 0; piece < cut_of(*image, dim)->sizes.size(); ++piece, numbers += 2) {
      const SplitRange read = {1 - numbers[0], numbers[1]};
      ranges.back().push_back(read.begin < read.end ? read : SplitRange{0, 0});
    }
  }
  return ranges;
}

// Samples of an image that may be cut along spatial dimensions.
at::Tensor sample_by_taps(at::Tensor image, const at::Tensor& grid, const SpecPtr& spec,
                          const SpecPtr& samples, const SamplingModes& modes) {
  const at::IntArrayRef extents = at::IntArrayRef(spec->global_shape()).slice(2);
  const std::vector<SampleTaps> taps = sample_taps(grid, extents, modes);
  const at::ScalarType dtype = image.scalar_type();
  std::vector<SplitRange> ranges;
  for (size_t d = 0; d < extents.size(); ++d) {
    const std::optional<CutDim> cut = cut_of(*spec, static_cast<int64_t>(d) + 2);
    ranges.push_back(cut ? cut->own_range() : SplitRange{0, extents[d]});
  }
  const std::vector<int64_t> dims = exchanged_dims(*spec, *samples);
  if (!dims.empty()) {
    const std::vector<std::vector<SplitRange>> read = read_ranges(spec, dims, taps);
    for (size_t i = 0; i < dims.size(); ++i) {
      const CutDim cut = *cut_of(*spec, dims[i]);
      image = RangeExchange(dims[i], cut.sizes, read[i], cut.group).gather(image);
      ranges[static_cast<size_t>(dims[i]) - 2] = read[i][static_cast<size_t>(cut.own)];
    }
  }
  if (at::isReducedFloatingType(dtype)) image = image.to(at::kFloat);
  at::Tensor result = sum_of_taps(image, ranges, taps).to(dtype).view(samples->local_shape());
  // The nearest element does not depend on where in its surroundings the point is.
  if (grid.requires_grad() &&
      modes.interpolation == static_cast<int64_t>(at::native::GridSamplerInterpolation::Nearest)) {
    result = tie(result, grid);
  }
  return result;
}

// Raises what LibTorch raises, also on a rank without points, and where LibTorch does not look.
void check_sampling(const at::Tensor& image, const at::Tensor& grid, const SamplingModes& modes) {
  TORCH_CHECK((image.dim() == 4 || image.dim() == 5) && image.dim() == grid.dim(),
              "grid_sampler(): expected 4D or 5D input and grid with same number of dimensions, "
              "but got input with sizes ",
              image.sizes(), " and grid with sizes ", grid.sizes());
  at::native::check_grid_sampler_common(image, grid);
  TORCH_CHECK(image.scalar_type() == grid.scalar_type(),
              "grid_sampler(): expected input and grid of one dtype, but got ", image.scalar_type(),
              " and ", grid.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(image.scalar_type()),
                              "grid_sampler is not implemented for ", image.scalar_type());
  TORCH_CHECK(modes.interpolation >= 0 && modes.interpolation <= 2 && modes.padding >= 0 &&
                  modes.padding <= 2,
              "grid_sampler(): interpolation mode ", modes.interpolation, " and padding mode ",
              modes.padding, " have to be in [0, 2]");
  if (image.dim() == 4 || modes.interpolation < 2) return;
  // LibTorch up to 2.14 has no bicubic interpolation of volumes.
  const at::TensorOptions options =
      at::TensorOptions().dtype(image.scalar_type()).device(image.device());
  at::grid_sampler_3d(at::zeros({1, 1, 1, 1, 1}, options), at::zeros({1, 1, 1, 1, 3}, options),
                      modes.interpolation, modes.padding, modes.align_corners);
}

template <auto Sample>
at::Tensor sample_grid(const at::Tensor& input, const at::Tensor& grid, int64_t interpolation,
                       int64_t padding, bool align_corners) {
  const SamplingModes modes = {interpolation, padding, align_corners};
  check_sampling(input, grid, modes);
  const ShardMesh::Ptr mesh = mesh_of({&input, &grid}, "grid_sampler");
  const at::Tensor image = promote(input, mesh);
  const at::Tensor points = promote(grid, mesh);
  const DerivedSpecs specs =
      derived_specs({rule_number(&kSamplingRule)}, {&spec_of(image), &spec_of(points)},
                    [&] { return sampling_layouts(spec_of(image), spec_of(points)); });
  const SpecPtr& samples = specs[2];
  const auto local = [&](const at::Tensor& tensor, const SpecPtr& spec) {
    return to_local(redistribute(tensor, spec), partial_where_replicated(spec, samples));
  };
  const at::Tensor own_image = local(image, specs[0]);
  const at::Tensor own_points = local(points, specs[1]);
  // LibTorch's second derivatives refuse tensors without elements, and the graphs of all ranks have
  // to be alike: all of them go by taps where one has no samples.
  bool by_taps = has_empty_piece(*samples);
  for (int64_t dim = 2; dim < input.dim(); ++dim) by_taps |= cut_of(*specs[0], dim).has_value();
  return from_local(by_taps ? sample_by_taps(own_image, own_points, specs[0], samples, modes)
                            : Sample(own_image, own_points, interpolation, padding, align_corners),
                    samples);
}

template <size_t dims, auto Sample>
at::Tensor sample_grid_of(const at::Tensor& input, const at::Tensor& grid, int64_t interpolation,
                          int64_t padding, bool align_corners) {
  if constexpr (dims == 2) {
    at::native::check_grid_sampler_2d(input, grid);
  } else {
    at::native::check_grid_sampler_3d(input, grid, interpolation);
  }
  return sample_grid<Sample>(input, grid, interpolation, padding, align_corners);
}

at::Tensor affine_grid(const at::Tensor& theta, at::IntArrayRef size, bool align_corners) {
  TORCH_CHECK(size.size() == 4 || size.size() == 5,
              "AffineGridGenerator needs 4d (spatial) or 5d (volumetric) inputs.");
  const auto dims = static_cast<int64_t>(size.size()) - 2;
  TORCH_CHECK(theta.sizes() == at::IntArrayRef({size[0], dims, dims + 1}),
              "affine_grid_generator: theta of ", theta.sizes(), " for a grid of ", size);
  const SpecPtr spec = with_whole_dims(spec_of(theta), {1, 2});
  std::vector<int64_t> own = size.vec();
  own[0] = spec->local_shape()[0];
  std::vector<DimCut> cuts = {spec->layout().cuts()[0]};
  for (const int64_t extent : size.slice(2)) cuts.push_back({{}, {extent}});
  cuts.push_back({{}, {dims}});
  return from_local(
      at::affine_grid_generator(to_local(redistribute(theta, spec)), own, align_corners),
      make_spec(spec->mesh(), ShardLayout::with_cuts(spec->mesh()->shape(), spec->placements(),
                                                     std::move(cuts))));
}

const Movement kSamples = {
    "any Shard of the batch, equal on both; Shard of channels or of spatial dims beside a whole "
    "grid of fewer points, Shard of the points beside a whole input; Replicate",
    "input and points cut: what each rank's points read of other pieces, after one all-reduce of "
    "their ranges; other cuts on one axis: the smaller operand; a Partial is reduced. A cut input "
    "beside a whole grid of fewer points: nothing, the result is Partial(sum)",
    "the same, back; the gradient of a whole operand is Partial(sum)"};

const bool kRegistered =
    OperatorFamily("sampling")
        .above_autograd("aten::affine_grid_generator", &affine_grid,
                        {"Shard of the batch, Replicate",
                         "a matrix that is cut is gathered; a Partial is reduced", "nothing"})
        .above_autograd("aten::grid_sampler", &sample_grid<&at::grid_sampler>, kSamples)
        .above_autograd("aten::grid_sampler_2d", &sample_grid_of<2, &at::grid_sampler_2d>, kSamples)
        .above_autograd("aten::grid_sampler_3d", &sample_grid_of<3, &at::grid_sampler_3d>, kSamples)
        .registered();

}  // namespace
}  // namespace meshrun
