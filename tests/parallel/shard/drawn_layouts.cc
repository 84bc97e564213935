#include "tests/parallel/shard/drawn_layouts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ATen/ATen.h"
#include "fmt/format.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun {

int64_t Draw::integer(int64_t low, int64_t high) {
  // Not std::uniform_int_distribution, which libraries implement differently.
  return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
}

bool Draw::chance(double probability) {
  return static_cast<double>(integer(0, 999'999)) < probability * 1e6;
}

at::Tensor Draw::normal(at::IntArrayRef shape) {
  at::Tensor values = at::empty(shape, at::kDouble);
  auto* data = values.mutable_data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    // Irwin-Hall: close to normal, the same everywhere.
    double sum = 0;
    for (int j = 0; j < 6; ++j) sum += static_cast<double>(integer(0, 1'000'000)) * 1e-6;
    data[i] = sum - 3;
  }
  return values;
}

at::Tensor Draw::positive(at::IntArrayRef shape) { return normal(shape).abs() + 0.1; }

at::Tensor Draw::integers(at::IntArrayRef shape, int64_t low, int64_t high) {
  at::Tensor values = at::empty(shape, at::kLong);
  auto* data = values.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < values.numel(); ++i) data[i] = integer(low, high);
  return values;
}

std::vector<int64_t> uneven(Draw& draw, int64_t extent, int64_t pieces) {
  std::vector<int64_t> sizes(static_cast<size_t>(pieces));
  for (int64_t i = 0; i < extent; ++i) {
    ++sizes[static_cast<size_t>(draw.integer(0, pieces - 1))];
  }
  return sizes;
}

ShardLayout with_uneven_cuts(Draw& draw, const ShardLayout& layout) {
  std::vector<DimCut> cuts = layout.cuts();
  for (DimCut& cut : cuts) {
    if (cut.axes.empty()) continue;
    const int64_t extent = std::accumulate(cut.sizes.begin(), cut.sizes.end(), int64_t{0});
    cut.sizes = uneven(draw, extent, static_cast<int64_t>(cut.sizes.size()));
  }
  return ShardLayout::with_cuts(layout.mesh_shape(), layout.placements(), std::move(cuts));
}

ShardLayout draw_layout(Draw& draw, const std::vector<int64_t>& mesh_shape,
                        const std::vector<int64_t>& shape, bool may_be_partial, bool may_be_cut) {
  Placements placements;
  for (size_t axis = 0; axis < mesh_shape.size(); ++axis) {
    const int64_t kind = draw.integer(0, 9);
    if (kind < 6 && !shape.empty() && may_be_cut) {
      placements.push_back(Shard(draw.integer(0, static_cast<int64_t>(shape.size()) - 1)));
    } else if (kind == 6 && may_be_partial) {
      placements.push_back(Partial());
    } else {
      placements.push_back(Replicate());
    }
  }
  ShardLayout layout = ShardLayout::split(mesh_shape, placements, shape);
  return draw.chance(0.5) ? layout : with_uneven_cuts(draw, layout);
}

at::Tensor part_of(const at::Tensor& whole, const ShardTensorSpec& spec) {
  at::Tensor part = whole;
  for (int64_t dim = 0; dim < whole.dim(); ++dim) {
    const auto d = static_cast<size_t>(dim);
    part = part.narrow(dim, std::min(spec.box().offsets[d], whole.size(dim)), spec.box().sizes[d]);
  }
  part = part.contiguous().clone();
  for (int64_t axis = 0; axis < spec.mesh()->ndim(); ++axis) {
    if (!spec.placements()[static_cast<size_t>(axis)].is_partial()) continue;
    const int64_t ranks = spec.mesh()->shape()[static_cast<size_t>(axis)];
    const int64_t own = spec.mesh()->coordinate()[static_cast<size_t>(axis)];
    if (ranks == 1) continue;
    if (spec.placements()[static_cast<size_t>(axis)].op() == PartialOp::kAvg) {
      part = own == 0 ? part + 2.0 : own == 1 ? part - 2.0 : part;
      continue;
    }
    part = own == 0 ? part + 2.0 : own == 1 ? at::full_like(part, -2.0) : at::zeros_like(part);
  }
  return part;
}

ShardMesh::Ptr mesh_of_world(const std::vector<int64_t>& shape) {
  DistributedManager& manager = DistributedManager::get();
  MeshLayout layout{{}, shape, std::vector<int>(static_cast<size_t>(manager.world_size()))};
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    layout.names.push_back(fmt::format("axis{}", axis));
  }
  std::iota(layout.ranks.begin(), layout.ranks.end(), 0);
  return ShardMesh::of(DeviceMesh(layout, manager.rank()));
}

}  // namespace meshrun
