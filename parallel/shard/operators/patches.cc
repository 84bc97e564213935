// Images as columns of blocks and back (im2col, col2im), and blocks of pixels as channels and back
// (pixel_shuffle, pixel_unshuffle).
//
// Columns follow the blocks row by row. So a rank that has rows of an image and whole rows of
// blocks has consecutive columns: a cut height is a cut of the columns at ends of rows of blocks.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/native/im2col_shape_check.h"
#include "ATen/ops/col2im.h"
#include "ATen/ops/im2col.h"
#include "ATen/ops/pixel_shuffle.h"
#include "ATen/ops/pixel_unshuffle.h"
#include "ATen/ops/zeros.h"
#include "c10/util/SmallVector.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/operators/windows.h"
#include "parallel/shard/redistribute/redistribution_plans.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

// The rules of window plans, and of layouts.
const char kBlocksRule = 0;
const char kColumnsRule = 0;
const char kFoldRule = 0;
const char kFoldedRule = 0;
const char kRoundedRule = 0;
const char kScaledRule = 0;

// `layout` with `change` of its cuts; the placements stay.
template <typename Change>
ShardLayout with_changed_cuts(const ShardLayout& layout, const Change& change) {
  std::vector<DimCut> cuts = layout.cuts();
  change(cuts);
  return ShardLayout::with_cuts(layout.mesh_shape(), layout.placements(), std::move(cuts));
}

Lengths sizes_times(Lengths sizes, int64_t multiplier, int64_t divisor) {
  for (int64_t& size : sizes) size = size * multiplier / divisor;
  return sizes;
}

// The pieces of `dim` end at the multiples of `unit` that are nearest to where they ended.
SpecPtr with_pieces_of(const SpecPtr& spec, int64_t dim, int64_t unit) {
  const DimCut& cut = spec->layout().cuts()[static_cast<size_t>(dim)];
  const bool fits = std::all_of(cut.sizes.begin(), cut.sizes.end(),
                                [&](int64_t size) { return size % unit == 0; });
  if (fits) return spec;
  return derived_specs({rule_number(&kRoundedRule), dim, unit}, {&spec},
                       [&] {
                         return std::vector<ShardLayout>{
                             with_changed_cuts(spec->layout(), [&](std::vector<DimCut>& cuts) {
                               int64_t end = 0;
                               int64_t rounded = 0;
                               for (int64_t& size : cuts[static_cast<size_t>(dim)].sizes) {
                                 end += size;
                                 const int64_t next = (end + unit / 2) / unit * unit;
                                 size = next - rounded;
                                 rounded = next;
                               }
                             })};
                       })
      .front();
}

// One value each for height and width.
struct Blocks {
  Blocks(at::IntArrayRef kernel_, at::IntArrayRef dilation_, at::IntArrayRef padding_,
         at::IntArrayRef stride_)
      : kernel(kernel_.vec()),
        dilation(dilation_.vec()),
        padding(padding_.vec()),
        stride(stride_.vec()) {
    const auto check = [](const Lengths& values, const char* name) {
      TORCH_CHECK(values.size() == 2, "It is expected ", name, " equals to 2, but got size ",
                  values.size());
    };
    check(kernel, "kernel_size");
    check(dilation, "dilation");
    check(padding, "padding");
    check(stride, "stride");
  }

  int64_t area() const { return kernel[0] * kernel[1]; }
  int64_t reach(size_t i) const { return dilation[i] * (kernel[i] - 1) + 1; }
  int64_t count(size_t i, int64_t extent) const {
    return sliding_outputs(extent, kernel[i], stride[i], padding[i], padding[i], dilation[i]);
  }
  WindowedDim windows(size_t i, int64_t extent) const {
    return WindowedDim::sliding(count(i, extent), kernel[i], stride[i], padding[i], dilation[i]);
  }
  c10::SmallVector<int64_t, 24> key(const char* rule) const {
    c10::SmallVector<int64_t, 24> key = {rule_number(rule)};
    for (const Lengths* values : {&kernel, &dilation, &padding, &stride}) {
      key.append(values->begin(), values->end());
    }
    return key;
  }
  at::Tensor im2col(const at::Tensor& image, bool pads_height) const {
    return at::im2col(image, kernel, dilation, {pads_height ? padding[0] : 0, padding[1]}, stride);
  }
  at::Tensor col2im(const at::Tensor& columns, at::IntArrayRef size, bool pads_height) const {
    return at::col2im(columns, size, kernel, dilation, {pads_height ? padding[0] : 0, padding[1]},
                      stride);
  }

  Lengths kernel, dilation, padding, stride;
};

// Raises what LibTorch raises for such a dtype, also on a rank without blocks.
void check_dtype(const at::Tensor& self) {
  if (at::isFloatingType(self.scalar_type())) return;
  at::im2col(
      at::zeros({1, 1, 1}, at::TensorOptions().dtype(self.scalar_type()).device(self.device())),
      {1, 1}, {1, 1}, {0, 0}, {1, 1});
}

// Rows of blocks have to be whole: axes that cut the width cut the height.
SpecPtr with_whole_rows(const SpecPtr& spec, int64_t height) {
  Placements placements = gradient_spec(spec)->placements();
  for (Placement& placement : placements) {
    if (placement.is_shard(height + 1)) placement = Shard(height);
  }
  return windowed_spec(
      placements == spec->placements() ? spec : target_spec(spec, std::move(placements)), {});
}

// Where the blocks of such a result lie in the columns: [..., channels, rows, blocks of a row].
SpecPtr columns_spec(const SpecPtr& blocks, int64_t area) {
  return derived_specs({rule_number(&kColumnsRule), area}, {&blocks},
                       [&] {
                         return std::vector<ShardLayout>{
                             with_changed_cuts(blocks->layout(), [&](std::vector<DimCut>& cuts) {
                               const int64_t across = cuts.back().sizes.front();
                               cuts.pop_back();
                               cuts.back().sizes =
                                   sizes_times(std::move(cuts.back().sizes), across, 1);
                               DimCut& channels = cuts[cuts.size() - 2];
                               channels.sizes = sizes_times(std::move(channels.sizes), area, 1);
                             })};
                       })
      .front();
}

at::Tensor im2col(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef dilation,
                  at::IntArrayRef padding, at::IntArrayRef stride) {
  const Blocks blocks(kernel, dilation, padding, stride);
  at::native::im2col_shape_check(self, {}, kernel[0], kernel[1], dilation[0], dilation[1],
                                 padding[0], padding[1], stride[0], stride[1]);
  check_dtype(self);
  const int64_t height = self.dim() - 2;
  const SpecPtr spec = with_whole_rows(spec_of(self), height);
  const WindowPlan plan(spec, {.first = height}, blocks.key(&kBlocksRule), [&] {
    return std::vector<WindowedDim>{blocks.windows(0, self.size(-2)),
                                    blocks.windows(1, self.size(-1))};
  });
  const SpecPtr result = columns_spec(plan.result(), blocks.area());
  const at::Tensor gathered = plan.gather(to_local(redistribute(self, spec)));
  return from_local(plan.computes() ? blocks.im2col(gathered, plan.cut(height) == nullptr)
                                    : connected_zeros(gathered, result->local_shape()),
                    result);
}

// Along the cut height of an image that is added up from columns.
struct Fold {
  RangeExchange exchange;  // each rank has a range of rows
  SplitRange range;        // this rank's, which its blocks cover; may reach beyond the ends
  Lengths rows;            // pieces of the result
};

// The pieces end in the middle of what the last block of one rank and the first one of the next
// both cover, or leave between them. So blocks without overlap send nothing, and im2col has each
// block on the rank that it came from.
Fold fold(const Blocks& blocks, const CutDim& columns, int64_t across, int64_t height,
          int64_t dim) {
  const int64_t all = blocks.count(0, height);
  Lengths ends;
  std::vector<SplitRange> ranges;
  int64_t first = 0;  // row of blocks
  for (const int64_t size : columns.sizes) {
    const int64_t begin = first * blocks.stride[0] - blocks.padding[0];
    const int64_t count = size / across;
    const int64_t last_end = begin + (count - 1) * blocks.stride[0] + blocks.reach(0);
    ranges.push_back(count == 0 ? SplitRange{0, 0} : SplitRange{begin, last_end});
    first += count;
    const int64_t next = first * blocks.stride[0] - blocks.padding[0];
    const int64_t former_end = next - blocks.stride[0] + blocks.reach(0);
    ends.push_back(first == 0     ? 0
                   : first == all ? height
                                  : std::clamp<int64_t>((next + former_end) / 2, 0, height));
  }
  Lengths rows(ends.size());
  std::adjacent_difference(ends.begin(), ends.end(), rows.begin());
  return {RangeExchange(dim, rows, ranges, columns.group), ranges[static_cast<size_t>(columns.own)],
          rows};
}

at::Tensor col2im(const at::Tensor& self, at::IntArrayRef output_size, at::IntArrayRef kernel,
                  at::IntArrayRef dilation, at::IntArrayRef padding, at::IntArrayRef stride) {
  TORCH_CHECK(output_size.size() == 2, "It is expected output_size equals to 2, but got size ",
              output_size.size());
  const Blocks blocks(kernel, dilation, padding, stride);
  at::native::col2im_shape_check(self, {}, output_size[0], output_size[1], kernel[0], kernel[1],
                                 dilation[0], dilation[1], padding[0], padding[1], stride[0],
                                 stride[1]);
  check_dtype(self);
  const int64_t dim = self.dim() - 1;  // columns; of the image, its height
  const int64_t across = blocks.count(1, output_size[1]);
  const SpecPtr spec = with_pieces_of(with_pieces_of(windowed_spec(spec_of(self), {}), dim, across),
                                      dim - 1, blocks.area());
  c10::SmallVector<int64_t, 24> key = blocks.key(&kFoldRule);
  key.append(output_size.begin(), output_size.end());
  const std::optional<CutDim> cut = cut_of(*spec, dim);
  std::shared_ptr<const Fold> folded;
  if (cut) {
    folded =
        kept_plan<Fold>(spec, key, [&] { return fold(blocks, *cut, across, output_size[0], dim); });
  }
  key[0] = rule_number(&kFoldedRule);
  const SpecPtr result =
      derived_specs(key, {&spec}, [&] {
        return std::vector<ShardLayout>{
            with_changed_cuts(spec->layout(), [&](std::vector<DimCut>& cuts) {
              cuts.back().sizes = folded ? folded->rows : Lengths{output_size[0]};
              DimCut& channels = cuts[cuts.size() - 2];
              channels.sizes = sizes_times(std::move(channels.sizes), 1, blocks.area());
              cuts.push_back({{}, {output_size[1]}});
            })};
      }).front();
  const at::Tensor columns = to_local(redistribute(self, spec));
  Lengths image = result->local_shape();
  if (folded) image[static_cast<size_t>(dim)] = folded->range.size();
  const at::Tensor sums =
      columns.numel() > 0
          ? blocks.col2im(columns, at::IntArrayRef(image).slice(static_cast<size_t>(dim)), !folded)
          : connected_zeros(columns, image);
  return from_local(folded ? folded->exchange.scatter(sums) : sums, result);
}

// Sizes of all pieces times the first and divided by the second of each pair, which are those of
// the last dimensions.
SpecPtr scaled_spec(const SpecPtr& spec, const std::vector<std::pair<int64_t, int64_t>>& factors) {
  c10::SmallVector<int64_t, 8> key = {rule_number(&kScaledRule)};
  for (const auto& [multiplier, divisor] : factors) key.append({multiplier, divisor});
  return derived_specs(key, {&spec},
                       [&] {
                         return std::vector<ShardLayout>{
                             with_changed_cuts(spec->layout(), [&](std::vector<DimCut>& cuts) {
                               for (size_t i = 0; i < factors.size(); ++i) {
                                 Lengths& sizes = cuts[cuts.size() - factors.size() + i].sizes;
                                 sizes = sizes_times(std::move(sizes), factors[i].first,
                                                     factors[i].second);
                               }
                             })};
                       })
      .front();
}

void check_pixels(const at::Tensor& self, int64_t factor, const char* name) {
  TORCH_CHECK(self.dim() >= 3, name, " expects input to have at least 3 dimensions, but got ",
              self.dim());
  TORCH_CHECK(factor > 0, name, " expects a positive factor, but got ", factor);
}

// `Move` on the local tensors, with the pieces of `spec`. LibTorch's kernels do not give all
// tensors without elements the shape of the result.
template <auto Move>
at::Tensor move_pixels(const at::Tensor& self, int64_t factor, const SpecPtr& spec,
                       const SpecPtr& result) {
  const at::Tensor local = redistribute_local(local_of(self), spec_of(self), spec);
  return wrap(local.numel() > 0 ? Move(local, factor) : local.new_empty(result->local_shape()),
              result);
}

at::Tensor pixel_shuffle(const at::Tensor& self, int64_t factor) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  check_pixels(self, factor, "pixel_shuffle");
  const int64_t area = factor * factor;
  TORCH_CHECK(self.size(-3) % area == 0, "pixel_shuffle: ", self.size(-3),
              " channels are not divisible by the square of ", factor);
  const SpecPtr spec = with_pieces_of(spec_of(self), self.dim() - 3, area);
  return move_pixels<&at::pixel_shuffle>(self, factor, spec,
                                         scaled_spec(spec, {{1, area}, {factor, 1}, {factor, 1}}));
}

at::Tensor pixel_unshuffle(const at::Tensor& self, int64_t factor) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  check_pixels(self, factor, "pixel_unshuffle");
  TORCH_CHECK(self.size(-2) % factor == 0 && self.size(-1) % factor == 0,
              "pixel_unshuffle: ", self.size(-2), " x ", self.size(-1),
              " pixels are not divisible by ", factor);
  const SpecPtr spec =
      with_pieces_of(with_pieces_of(spec_of(self), self.dim() - 2, factor), self.dim() - 1, factor);
  return move_pixels<&at::pixel_unshuffle>(
      self, factor, spec, scaled_spec(spec, {{factor * factor, 1}, {1, factor}, {1, factor}}));
}

const bool kRegistered =
    OperatorFamily("patches")
        .above_autograd("aten::im2col", &im2col,
                        {"any Shard with the width whole, Replicate",
                         "halos of a cut height, exact bytes; a cut width becomes a cut height; a "
                         "Partial is reduced",
                         "halos back"})
        .above_autograd(
            "aten::col2im", &col2im,
            {"any Shard; columns between rows of blocks, channels between blocks",
             "what blocks of other ranks add to a piece; pieces that end elsewhere move "
             "to the nearest such end; a Partial is reduced",
             "the same, back"})
        .below_autograd(
            "aten::pixel_shuffle", &pixel_shuffle,
            {"any; channels in multiples of factor * factor",
             "channels, where pieces end elsewhere, to the nearest such end", "the same, back"})
        .below_autograd("aten::pixel_unshuffle", &pixel_unshuffle,
                        {"any; height and width in multiples of factor",
                         "rows and columns, where pieces end elsewhere, to the nearest such end",
                         "the same, back"})
        .registered();

}  // namespace
}  // namespace meshrun
