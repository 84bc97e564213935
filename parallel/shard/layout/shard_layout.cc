#include "parallel/shard/layout/shard_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/extents.h"
#include "parallel/base/split.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;
using Splitter = std::function<Lengths(int64_t extent, int64_t pieces)>;

Lengths chunk_sizes(int64_t extent, int64_t pieces) {
  const int64_t chunk = (extent + pieces - 1) / pieces;
  Lengths sizes(static_cast<size_t>(pieces));
  for (int64_t& size : sizes) {
    size = std::min(chunk, extent);
    extent -= size;
  }
  return sizes;
}

void check_mesh(const Lengths& mesh_shape, const Placements& placements) {
  if (mesh_shape.size() != placements.size()) {
    throw ShardLayoutError(fmt::format("placements {} are {}, and the mesh {} has {} axes",
                                       to_string(placements), placements.size(),
                                       fmt::join(mesh_shape, "x"), mesh_shape.size()));
  }
}

Lengths axes_of(const Placements& placements, int64_t dim) {
  Lengths axes;
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis].is_shard(dim)) axes.push_back(static_cast<int64_t>(axis));
  }
  return axes;
}

int64_t pieces_of(const Lengths& mesh_shape, const Lengths& axes) {
  int64_t pieces = 1;
  for (const int64_t axis : axes) pieces *= mesh_shape[static_cast<size_t>(axis)];
  return pieces;
}

// Each piece is cut anew along the next axis.
DimCut nested_cut(const Lengths& mesh_shape, const Placements& placements, int64_t dim,
                  int64_t extent, const Splitter& split) {
  DimCut cut{axes_of(placements, dim), {extent}};
  for (const int64_t axis : cut.axes) {
    Lengths finer;
    for (const int64_t size : cut.sizes) {
      const Lengths parts = split(size, mesh_shape[static_cast<size_t>(axis)]);
      finer.insert(finer.end(), parts.begin(), parts.end());
    }
    cut.sizes = std::move(finer);
  }
  return cut;
}

std::vector<DimCut> nested_cuts(const Lengths& mesh_shape, const Placements& placements,
                                const Lengths& global_shape, const Splitter& split) {
  std::vector<DimCut> cuts;
  cuts.reserve(global_shape.size());
  for (size_t dim = 0; dim < global_shape.size(); ++dim) {
    cuts.push_back(
        nested_cut(mesh_shape, placements, static_cast<int64_t>(dim), global_shape[dim], split));
  }
  return cuts;
}

uint64_t mixed(uint64_t hash, int64_t value) {
  return (hash ^ static_cast<uint64_t>(value)) * 0x100'0000'01b3 + (hash >> 29);
}

}  // namespace

Box intersect(const Box& a, const Box& b) {
  Box common;
  common.offsets.reserve(a.sizes.size());
  common.sizes.reserve(a.sizes.size());
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    const int64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const int64_t end = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    common.offsets.push_back(begin);
    common.sizes.push_back(std::max<int64_t>(end - begin, 0));
  }
  return common;
}

int64_t numel(const Box& box) {
  return std::accumulate(box.sizes.begin(), box.sizes.end(), int64_t{1}, std::multiplies<>());
}

Placements normalized(Placements placements, int64_t ndim) {
  for (Placement& placement : placements) {
    if (!placement.is_shard()) continue;
    const int64_t dim = placement.dim() < 0 ? placement.dim() + ndim : placement.dim();
    if (dim < 0 || dim >= ndim) {
      throw ShardLayoutError(fmt::format("{} is out of range for a tensor of {} dimensions",
                                         to_string(placement), ndim));
    }
    placement = Placement::shard(dim);
  }
  return placements;
}

std::vector<Lengths> all_coordinates(const Lengths& mesh_shape) {
  std::vector<Lengths> all = {Lengths{}};
  for (const int64_t extent : mesh_shape) {
    std::vector<Lengths> longer;
    for (const Lengths& prefix : all) {
      for (int64_t i = 0; i < extent; ++i) {
        longer.push_back(prefix);
        longer.back().push_back(i);
      }
    }
    all = std::move(longer);
  }
  return all;
}

ShardLayout ShardLayout::split(Lengths mesh_shape, Placements placements,
                               const Lengths& global_shape) {
  check_mesh(mesh_shape, placements);
  ShardLayout layout;
  layout.placements_ = normalized(std::move(placements), static_cast<int64_t>(global_shape.size()));
  layout.mesh_shape_ = std::move(mesh_shape);
  layout.cuts_ = nested_cuts(
      layout.mesh_shape_, layout.placements_, global_shape,
      [](int64_t extent, int64_t pieces) { return compute_split_shapes(extent, pieces); });
  layout.finish();
  return layout;
}

ShardLayout ShardLayout::chunk(Lengths mesh_shape, Placements placements,
                               const Lengths& global_shape) {
  check_mesh(mesh_shape, placements);
  ShardLayout layout;
  layout.placements_ = normalized(std::move(placements), static_cast<int64_t>(global_shape.size()));
  layout.mesh_shape_ = std::move(mesh_shape);
  layout.cuts_ = nested_cuts(layout.mesh_shape_, layout.placements_, global_shape, chunk_sizes);
  layout.finish();
  return layout;
}

ShardLayout ShardLayout::with_cuts(Lengths mesh_shape, Placements placements,
                                   std::vector<DimCut> cuts) {
  check_mesh(mesh_shape, placements);
  ShardLayout layout;
  layout.placements_ = normalized(std::move(placements), static_cast<int64_t>(cuts.size()));
  layout.mesh_shape_ = std::move(mesh_shape);
  for (size_t dim = 0; dim < cuts.size(); ++dim) {
    const Lengths axes = axes_of(layout.placements_, static_cast<int64_t>(dim));
    const int64_t pieces = pieces_of(layout.mesh_shape_, axes);
    if (cuts[dim].axes != axes || static_cast<int64_t>(cuts[dim].sizes.size()) != pieces) {
      throw ShardLayoutError(fmt::format(
          "dimension {} is cut into {} pieces [{}], and {} on the mesh {} cut it into {}", dim,
          cuts[dim].sizes.size(), fmt::join(cuts[dim].sizes, ", "), to_string(layout.placements_),
          fmt::join(layout.mesh_shape_, "x"), pieces));
    }
    for (const int64_t size : cuts[dim].sizes) {
      if (size < 0) {
        throw ShardLayoutError(fmt::format("dimension {} has a piece of {}", dim, size));
      }
    }
  }
  layout.cuts_ = std::move(cuts);
  layout.finish();
  return layout;
}

ShardLayout ShardLayout::infer(Lengths mesh_shape, Placements placements,
                               const std::vector<Lengths>& local_shapes) {
  check_mesh(mesh_shape, placements);
  const std::vector<Lengths> coordinates = all_coordinates(mesh_shape);
  if (coordinates.size() != local_shapes.size()) {
    throw ShardLayoutError(fmt::format("{} local shapes for a mesh of {} ranks",
                                       local_shapes.size(), coordinates.size()));
  }
  const size_t ndim = local_shapes.front().size();
  for (size_t rank = 0; rank < local_shapes.size(); ++rank) {
    if (local_shapes[rank].size() != ndim) {
      throw ShardLayoutError(
          fmt::format("the local tensor has {} dimensions at mesh coordinate [{}] and {} at [{}]",
                      ndim, fmt::join(coordinates[0], ", "), local_shapes[rank].size(),
                      fmt::join(coordinates[rank], ", ")));
    }
  }
  placements = normalized(std::move(placements), static_cast<int64_t>(ndim));
  std::vector<DimCut> cuts(ndim);
  std::vector<std::vector<size_t>> said_by(ndim);
  for (size_t dim = 0; dim < ndim; ++dim) {
    cuts[dim].axes = axes_of(placements, static_cast<int64_t>(dim));
    const auto pieces = static_cast<size_t>(pieces_of(mesh_shape, cuts[dim].axes));
    cuts[dim].sizes.assign(pieces, -1);
    said_by[dim].resize(pieces);
    for (size_t rank = 0; rank < coordinates.size(); ++rank) {
      size_t piece = 0;
      for (const int64_t axis : cuts[dim].axes) {
        piece = piece * static_cast<size_t>(mesh_shape[static_cast<size_t>(axis)]) +
                static_cast<size_t>(coordinates[rank][static_cast<size_t>(axis)]);
      }
      int64_t& size = cuts[dim].sizes[piece];
      if (size < 0) {
        size = local_shapes[rank][dim];
        said_by[dim][piece] = rank;
      } else if (size != local_shapes[rank][dim]) {
        throw ShardLayoutError(fmt::format(
            "the local tensors do not make a grid under {}: dimension {} is {} at mesh coordinate "
            "[{}] and {} at [{}]",
            to_string(placements), dim, size, fmt::join(coordinates[said_by[dim][piece]], ", "),
            local_shapes[rank][dim], fmt::join(coordinates[rank], ", ")));
      }
    }
  }
  return with_cuts(std::move(mesh_shape), std::move(placements), std::move(cuts));
}

ShardLayout ShardLayout::with_placements(const Placements& placements) const {
  return with_cuts(mesh_shape_, placements, cuts_);
}

int64_t ShardLayout::piece(IntArgument dim, const Lengths& coordinate) const {
  int64_t piece = 0;
  for (const int64_t axis : cuts_[static_cast<size_t>(dim)].axes) {
    piece = piece * mesh_shape_[static_cast<size_t>(axis)] + coordinate[static_cast<size_t>(axis)];
  }
  return piece;
}

Box ShardLayout::box(const Lengths& coordinate) const {
  Box box;
  box.offsets.reserve(cuts_.size());
  box.sizes.reserve(cuts_.size());
  for (int64_t dim = 0; dim < ndim(); ++dim) {
    const Lengths& sizes = cuts_[static_cast<size_t>(dim)].sizes;
    const int64_t own = piece(dim, coordinate);
    box.offsets.push_back(std::accumulate(sizes.begin(), sizes.begin() + own, int64_t{0}));
    box.sizes.push_back(sizes[static_cast<size_t>(own)]);
  }
  return box;
}

bool ShardLayout::operator==(const ShardLayout& other) const {
  return hash_ == other.hash_ && placements_ == other.placements_ &&
         mesh_shape_ == other.mesh_shape_ && cuts_ == other.cuts_;
}

void ShardLayout::finish() {
  global_shape_.clear();
  hash_ = 0xcbf2'9ce4'8422'2325;
  for (const Placement& placement : placements_) {
    has_partial_ |= placement.is_partial();
    is_replicated_ &= placement.is_replicate();
    hash_ = mixed(hash_, static_cast<int64_t>(placement.kind()));
    hash_ = mixed(hash_,
                  placement.is_partial() ? static_cast<int64_t>(placement.op()) : placement.dim());
  }
  for (const DimCut& cut : cuts_) {
    global_shape_.push_back(total_extent(cut.sizes));
    hash_ = mixed(hash_, static_cast<int64_t>(cut.sizes.size()));
    for (const int64_t size : cut.sizes) hash_ = mixed(hash_, size);
  }
  for (const int64_t extent : mesh_shape_) hash_ = mixed(hash_, extent);
}

}  // namespace meshrun
