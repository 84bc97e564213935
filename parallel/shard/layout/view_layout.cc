#include "parallel/shard/layout/view_layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "parallel/base/extents.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

int64_t product(const Lengths& extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
}

ShardLayout made(const ShardLayout& layout, Placements placements, std::vector<DimCut> cuts) {
  return ShardLayout::with_cuts(layout.mesh_shape(), std::move(placements), std::move(cuts));
}

// Coordinates of piece `piece` along the axes of a cut.
Lengths coordinates_of(const ShardLayout& layout, const DimCut& cut, int64_t piece) {
  Lengths coordinates(cut.axes.size());
  for (size_t i = cut.axes.size(); i-- > 0;) {
    const int64_t ranks = layout.mesh_shape()[static_cast<size_t>(cut.axes[i])];
    coordinates[i] = piece % ranks;
    piece /= ranks;
  }
  return coordinates;
}

void move_axes(Placements& placements, const DimCut& cut, int64_t dim) {
  for (const int64_t axis : cut.axes) {
    placements[static_cast<size_t>(axis)] = Placement::shard(dim);
  }
}

// Rows of the diagonal's first element and behind its last one.
std::pair<int64_t, int64_t> diagonal_rows(int64_t rows, int64_t columns, int64_t offset) {
  const int64_t first = std::max<int64_t>(0, -offset);
  return {first, std::max(first, std::min(rows, columns - offset))};
}

// Dimensions [in_begin, in_end) of a shape and [out_begin, out_end) of another have the same
// elements, and no smaller ranges do.
struct Group {
  size_t in_begin = 0;
  size_t in_end = 0;
  size_t out_begin = 0;
  size_t out_end = 0;
};

std::vector<Group> groups_of(const Lengths& in, const Lengths& out) {
  std::vector<Group> groups;
  size_t i = 0;
  size_t j = 0;
  while (i < in.size() && j < out.size()) {
    Group group{i, i, j, j};
    int64_t have = in[i++];
    int64_t want = out[j++];
    while (have != want) {
      if (have < want) {
        have *= in[i++];
      } else {
        want *= out[j++];
      }
    }
    group.in_end = i;
    group.out_end = j;
    groups.push_back(group);
  }
  if (i < in.size() || j < out.size()) groups.push_back({i, in.size(), j, out.size()});
  return groups;
}

// The first dimension with more than one element, or the first one; `end` where none is.
size_t leading(const Lengths& shape, size_t begin, size_t end) {
  for (size_t d = begin; d < end; ++d) {
    if (shape[d] > 1) return d;
  }
  return begin;
}

Lengths axes_in(const ShardLayout& layout, const Group& group) {
  Lengths axes;
  for (size_t d = group.in_begin; d < group.in_end; ++d) {
    const Lengths& own = layout.cuts()[d].axes;
    axes.insert(axes.end(), own.begin(), own.end());
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

// Lengths of the pieces of a group, laid end to end, over the coordinates on `axes`; nothing where
// a piece is not one run or the runs are not in order.
std::optional<Lengths> runs_of(const ShardLayout& layout, const Group& group, const Lengths& axes) {
  const Lengths& shape = layout.global_shape();
  int64_t pieces = 1;
  for (const int64_t axis : axes) pieces *= layout.mesh_shape()[static_cast<size_t>(axis)];
  Lengths runs;
  int64_t end = 0;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    Lengths coordinate(layout.mesh_shape().size(), 0);
    const Lengths own = coordinates_of(layout, DimCut{axes, {}}, piece);
    for (size_t i = 0; i < axes.size(); ++i) coordinate[static_cast<size_t>(axes[i])] = own[i];
    int64_t start = 0;
    int64_t length = 1;
    bool is_run = true;
    for (size_t d = group.in_begin; d < group.in_end; ++d) {
      const Lengths& sizes = layout.cuts()[d].sizes;
      const auto at = static_cast<size_t>(layout.piece(static_cast<int64_t>(d), coordinate));
      is_run &= length <= 1 || sizes[at] == shape[d];
      start = start * shape[d] + extent_offsets(sizes)[at];
      length *= sizes[at];
    }
    if (length == 0) {
      runs.push_back(0);
      continue;
    }
    if (!is_run || start != end) return std::nullopt;
    runs.push_back(length);
    end += length;
  }
  return runs;
}

}  // namespace

SliceRange SliceRange::within(int64_t offset, int64_t extent) const {
  int64_t first = start;
  if (first < offset) first += (offset - first + step - 1) / step * step;
  const int64_t stop = std::min(end, offset + extent);
  if (first >= stop) return {0, 0, step};
  return {first - offset, stop - offset, step};
}

ShardLayout permuted(const ShardLayout& layout, const std::vector<int64_t>& dims) {
  Placements placements = layout.placements();
  std::vector<DimCut> cuts;
  for (const int64_t dim : dims) {
    cuts.push_back(layout.cuts()[static_cast<size_t>(dim)]);
    move_axes(placements, cuts.back(), static_cast<int64_t>(cuts.size()) - 1);
  }
  return made(layout, std::move(placements), std::move(cuts));
}

ShardLayout with_dim(const ShardLayout& layout, int64_t dim, int64_t extent) {
  Placements placements = layout.placements();
  for (Placement& placement : placements) {
    if (placement.is_shard() && placement.dim() >= dim) {
      placement = Placement::shard(placement.dim() + 1);
    }
  }
  std::vector<DimCut> cuts = layout.cuts();
  cuts.insert(cuts.begin() + dim, DimCut{{}, {extent}});
  return made(layout, std::move(placements), std::move(cuts));
}

ShardLayout with_extent(const ShardLayout& layout, int64_t dim, int64_t extent) {
  std::vector<DimCut> cuts = layout.cuts();
  cuts[static_cast<size_t>(dim)].sizes = {extent};
  return made(layout, layout.placements(), std::move(cuts));
}

ShardLayout selected(const ShardLayout& layout, int64_t dim, int64_t index) {
  Placements placements = layout.placements();
  for (Placement& placement : placements) {
    if (placement.is_shard() && placement.dim() > dim) {
      placement = Placement::shard(placement.dim() - 1);
    }
  }
  const DimCut& cut = layout.cuts()[static_cast<size_t>(dim)];
  if (!cut.axes.empty()) {
    int64_t piece = 0;
    for (int64_t end = cut.sizes[0]; end <= index;) end += cut.sizes[static_cast<size_t>(++piece)];
    const Lengths holders = coordinates_of(layout, cut, piece);
    for (size_t i = 0; i < holders.size(); ++i) {
      placements[static_cast<size_t>(cut.axes[i])] = Placement::held_by(holders[i]);
    }
  }
  std::vector<DimCut> cuts = layout.cuts();
  cuts.erase(cuts.begin() + dim);
  return made(layout, std::move(placements), std::move(cuts));
}

ShardLayout sliced(const ShardLayout& layout, int64_t dim, const SliceRange& range) {
  std::vector<DimCut> cuts = layout.cuts();
  int64_t offset = 0;
  for (int64_t& size : cuts[static_cast<size_t>(dim)].sizes) {
    const int64_t extent = std::exchange(size, range.within(offset, size).size());
    offset += extent;
  }
  return made(layout, layout.placements(), std::move(cuts));
}

ShardLayout unsliced(const ShardLayout& layout, int64_t dim, const SliceRange& range,
                     int64_t extent) {
  std::vector<DimCut> cuts = layout.cuts();
  DimCut& cut = cuts[static_cast<size_t>(dim)];
  if (cut.axes.empty()) return with_extent(layout, dim, extent);
  Lengths shape = layout.global_shape();
  shape[static_cast<size_t>(dim)] = extent;
  const ShardLayout even = ShardLayout::split(layout.mesh_shape(), layout.placements(), shape);
  const Lengths preferred = extent_offsets(even.cuts()[static_cast<size_t>(dim)].sizes);
  const Lengths offsets = extent_offsets(cut.sizes);
  const int64_t total = range.size();
  int64_t begin = 0;
  for (size_t piece = 0; piece < cut.sizes.size(); ++piece) {
    int64_t end = extent;
    if (piece + 1 < cut.sizes.size()) {
      const int64_t next = offsets[piece + 1];
      const int64_t low = next == 0 ? 0 : range.start + range.step * (next - 1) + 1;
      const int64_t high = next == total ? extent : range.start + range.step * next;
      end = std::clamp(preferred[piece + 1], low, high);
    }
    cut.sizes[piece] = end - begin;
    begin = end;
  }
  return made(layout, layout.placements(), std::move(cuts));
}

ShardLayout diagonal(const ShardLayout& layout, int64_t offset, int64_t dim1, int64_t dim2) {
  const std::vector<DimCut>& cuts = layout.cuts();
  const auto at1 = static_cast<size_t>(dim1);
  const auto at2 = static_cast<size_t>(dim2);
  if (!cuts[at1].axes.empty() && !cuts[at2].axes.empty()) {
    throw ShardLayoutError("diagonal: both of its dimensions are cut; redistribute one of them");
  }
  const auto [first, end] =
      diagonal_rows(layout.global_shape()[at1], layout.global_shape()[at2], offset);
  const bool by_columns = !cuts[at2].axes.empty();
  DimCut cut = by_columns ? cuts[at2] : cuts[at1];
  const SliceRange range =
      by_columns ? SliceRange{first + offset, end + offset} : SliceRange{first, end};
  int64_t begin = 0;
  for (int64_t& size : cut.sizes) {
    const int64_t extent = std::exchange(size, range.within(begin, size).size());
    begin += extent;
  }
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < layout.ndim(); ++dim) {
    if (dim != dim1 && dim != dim2) dims.push_back(dim);
  }
  Placements placements = layout.placements();
  std::vector<DimCut> kept;
  for (const int64_t dim : dims) {
    kept.push_back(cuts[static_cast<size_t>(dim)]);
    move_axes(placements, kept.back(), static_cast<int64_t>(kept.size()) - 1);
  }
  kept.push_back(cut);
  move_axes(placements, cut, static_cast<int64_t>(kept.size()) - 1);
  return made(layout, std::move(placements), std::move(kept));
}

std::optional<ShardLayout> reshaped(const ShardLayout& layout, const std::vector<int64_t>& shape) {
  const Lengths& in = layout.global_shape();
  Placements placements = layout.placements();
  std::vector<DimCut> cuts(shape.size());
  for (size_t d = 0; d < shape.size(); ++d) cuts[d].sizes = {shape[d]};
  if (product(shape) == 0) {
    // Nobody has an element: dimensions that are left as they are keep their cuts.
    for (Placement& placement : placements) {
      if (placement.is_shard()) placement = Placement();
    }
    for (size_t d = 0; d < in.size() && d < shape.size() && in[d] == shape[d]; ++d) {
      cuts[d] = layout.cuts()[d];
      move_axes(placements, cuts[d], static_cast<int64_t>(d));
    }
    return made(layout, std::move(placements), std::move(cuts));
  }
  for (const Group& group : groups_of(in, shape)) {
    const Lengths axes = axes_in(layout, group);
    if (axes.empty()) continue;
    if (group.out_begin == group.out_end) return std::nullopt;
    const std::optional<Lengths> runs = runs_of(layout, group, axes);
    if (!runs) return std::nullopt;
    const size_t lead = leading(shape, group.out_begin, group.out_end);
    int64_t row = 1;
    for (size_t d = lead + 1; d < group.out_end; ++d) row *= shape[d];
    Lengths sizes;
    for (const int64_t run : *runs) {
      if (run % row != 0) return std::nullopt;
      sizes.push_back(run / row);
    }
    cuts[lead] = {axes, std::move(sizes)};
    move_axes(placements, cuts[lead], static_cast<int64_t>(lead));
  }
  return made(layout, std::move(placements), std::move(cuts));
}

ShardLayout reshapeable(const ShardLayout& layout, const std::vector<int64_t>& shape) {
  const Lengths& in = layout.global_shape();
  if (product(shape) == 0) return layout;
  Placements placements = layout.placements();
  std::vector<DimCut> cuts = layout.cuts();
  for (const Group& group : groups_of(in, shape)) {
    const Lengths axes = axes_in(layout, group);
    if (axes.empty()) continue;

    std::vector<DimCut> others(in.size());
    Placements own(placements.size());
    for (size_t d = 0; d < in.size(); ++d) {
      others[d].sizes = {in[d]};
      if (d < group.in_begin || d >= group.in_end) continue;
      others[d] = layout.cuts()[d];
      move_axes(own, others[d], static_cast<int64_t>(d));
    }
    if (reshaped(made(layout, own, others), shape)) continue;
    for (size_t d = group.in_begin; d < group.in_end; ++d) cuts[d] = {{}, {in[d]}};
    const size_t lead = leading(in, group.in_begin, group.in_end);
    const size_t out = leading(shape, group.out_begin, group.out_end);
    const int64_t units = out == group.out_end ? 1 : std::gcd(in[lead], shape[out]);
    for (const int64_t axis : axes) {
      placements[static_cast<size_t>(axis)] =
          units > 1 ? Placement::shard(static_cast<int64_t>(lead)) : Placement();
    }
    if (units == 1) continue;
    Lengths in_units = in;
    in_units[lead] = units;
    const Placements now = placements;
    Placements only(now.size());
    for (const int64_t axis : axes)
      only[static_cast<size_t>(axis)] = now[static_cast<size_t>(axis)];
    cuts[lead] = ShardLayout::split(layout.mesh_shape(), only, in_units).cuts()[lead];
    for (int64_t& size : cuts[lead].sizes) size *= in[lead] / units;
  }
  return made(layout, std::move(placements), std::move(cuts));
}

}  // namespace meshrun
