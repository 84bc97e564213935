#include "parallel/shard/redistribute/axis_layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

// The cut by the first `axes` of its axes alone.
DimCut coarsened(const DimCut& cut, size_t axes, const Lengths& mesh_shape) {
  size_t run = 1;
  for (size_t i = axes; i < cut.axes.size(); ++i) {
    run *= static_cast<size_t>(mesh_shape[static_cast<size_t>(cut.axes[i])]);
  }
  DimCut coarse{{cut.axes.begin(), cut.axes.begin() + static_cast<std::ptrdiff_t>(axes)}, {}};
  for (size_t i = 0; i < cut.sizes.size(); i += run) {
    const auto begin = cut.sizes.begin() + static_cast<std::ptrdiff_t>(i);
    coarse.sizes.push_back(
        std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(run), int64_t{0}));
  }
  return coarse;
}

}  // namespace

std::optional<ShardLayout> placed(const ShardLayout& present, const ShardLayout& to, size_t axis) {
  const Placement before = present.placements()[axis];
  const Placement after = to.placements()[axis];
  std::vector<DimCut> cuts = present.cuts();
  if (before.is_shard()) {
    DimCut& cut = cuts[static_cast<size_t>(before.dim())];
    if (cut.axes.back() != static_cast<int64_t>(axis)) return std::nullopt;
    cut = coarsened(cut, cut.axes.size() - 1, present.mesh_shape());
  }
  if (after.is_shard()) {
    DimCut& cut = cuts[static_cast<size_t>(after.dim())];
    const DimCut& last = to.cuts()[static_cast<size_t>(after.dim())];
    Lengths axes = cut.axes;
    axes.push_back(static_cast<int64_t>(axis));
    if (last.axes.size() < axes.size() || !std::equal(axes.begin(), axes.end(), last.axes.begin()))
      return std::nullopt;
    DimCut finer = coarsened(last, axes.size(), present.mesh_shape());
    if (coarsened(finer, axes.size() - 1, present.mesh_shape()).sizes != cut.sizes) {
      return std::nullopt;
    }
    cut = std::move(finer);
  }
  Placements placements = present.placements();
  placements[axis] = after;
  return ShardLayout::with_cuts(present.mesh_shape(), std::move(placements), std::move(cuts));
}

ShardLayout without_axes_of_one(const ShardLayout& layout) {
  Placements placements = layout.placements();
  std::vector<DimCut> cuts = layout.cuts();
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (layout.mesh_shape()[axis] != 1) continue;
    placements[axis] = Replicate();
    for (DimCut& cut : cuts) std::erase(cut.axes, static_cast<int64_t>(axis));
  }
  if (placements == layout.placements()) return layout;
  return ShardLayout::with_cuts(layout.mesh_shape(), std::move(placements), std::move(cuts));
}

bool share_copies(const ShardLayout& layout, const std::vector<int64_t>& a,
                  const std::vector<int64_t>& b) {
  for (size_t axis = 0; axis < a.size(); ++axis) {
    if (!layout.placements()[axis].is_shard() && a[axis] != b[axis]) return false;
  }
  return true;
}

}  // namespace meshrun
