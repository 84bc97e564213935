#include "parallel/shard/redistribute/redistribute.h"

#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/collectives/all_to_all_v.h"
#include "parallel/collectives/split.h"

namespace meshrun {

struct RedistributionPlans::State {};
RedistributionPlans::RedistributionPlans() = default;
RedistributionPlans::~RedistributionPlans() = default;

namespace {

c10d::ReduceOp::RedOpType reduce_op(PartialOp op) {
  switch (op) {
    case PartialOp::kSum:
      return c10d::ReduceOp::SUM;
    case PartialOp::kAvg:
      return c10d::ReduceOp::AVG;
    case PartialOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case PartialOp::kMin:
      return c10d::ReduceOp::MIN;
    case PartialOp::kMax:
      return c10d::ReduceOp::MAX;
  }
  return c10d::ReduceOp::SUM;
}

at::Tensor narrow_to(at::Tensor tensor, const Box& origin, const Box& part) {
  for (size_t d = 0; d < part.sizes.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    if (part.sizes[d] == tensor.size(dim)) continue;
    const int64_t begin = part.sizes[d] == 0 ? 0 : part.offsets[d] - origin.offsets[d];
    tensor = tensor.narrow(dim, begin, part.sizes[d]);
  }
  return tensor;
}

// Whether every rank already holds its new part.
bool is_local(const ShardLayout& from, const ShardLayout& to) {
  for (const auto& coordinate : all_coordinates(from.mesh_shape())) {
    const Box target = to.box(coordinate);
    if (numel(intersect(from.box(coordinate), target)) != numel(target)) return false;
  }
  return true;
}

// Whether the two ranks share their coordinates on all axes that do not shard `layout`.
bool exchange_with(const ShardLayout& layout, const std::vector<int64_t>& a,
                   const std::vector<int64_t>& b) {
  for (size_t axis = 0; axis < a.size(); ++axis) {
    if (!layout.placements()[axis].is_shard() && a[axis] != b[axis]) return false;
  }
  return true;
}

at::Tensor exchange(const at::Tensor& local, const ShardTensorSpec& from,
                    const ShardTensorSpec& to) {
  const ShardMesh& mesh = *from.mesh();
  const std::vector<int64_t>& self = mesh.coordinate();
  const auto coordinates = all_coordinates(mesh.shape());
  std::vector<int64_t> send_sizes(coordinates.size());
  std::vector<int64_t> receive_sizes(coordinates.size());
  std::vector<Box> sent(coordinates.size());
  std::vector<Box> received(coordinates.size());
  int64_t total = 0;
  for (size_t rank = 0; rank < coordinates.size(); ++rank) {
    if (coordinates[rank] == self || !exchange_with(from.layout(), self, coordinates[rank])) {
      continue;
    }
    sent[rank] = intersect(from.box(), to.layout().box(coordinates[rank]));
    received[rank] = intersect(from.layout().box(coordinates[rank]), to.box());
    send_sizes[rank] = numel(sent[rank]);
    receive_sizes[rank] = numel(received[rank]);
    total += send_sizes[rank];
  }
  const at::Tensor packed = at::empty({total}, local.options());
  int64_t offset = 0;
  for (size_t rank = 0; rank < coordinates.size(); ++rank) {
    if (send_sizes[rank] == 0) continue;
    packed.narrow(0, offset, send_sizes[rank])
        .view(sent[rank].sizes)
        .copy_(narrow_to(local, from.box(), sent[rank]));
    offset += send_sizes[rank];
  }
  const at::Tensor arrived =
      all_to_all_v(packed, send_sizes, receive_sizes, 0, 0, GroupArgument(mesh.group()));
  at::Tensor result = at::empty(to.local_shape(), local.options());
  const Box own = intersect(from.box(), to.box());
  if (numel(own) > 0) {
    narrow_to(result, to.box(), own).copy_(narrow_to(local, from.box(), own));
  }
  offset = 0;
  for (size_t rank = 0; rank < coordinates.size(); ++rank) {
    if (receive_sizes[rank] == 0) continue;
    narrow_to(result, to.box(), received[rank])
        .copy_(arrived.narrow(0, offset, receive_sizes[rank]).view(received[rank].sizes));
    offset += receive_sizes[rank];
  }
  return result;
}

}  // namespace

SpecPtr target_spec(const SpecPtr& from, Placements placements) {
  return with_shard_errors([&] {
    const ShardLayout& layout = from->layout();
    placements = normalized(std::move(placements), layout.ndim());
    if (placements.size() != layout.placements().size()) {
      throw ShardLayoutError(fmt::format("placements {} are {}, and the mesh {} has {} axes",
                                         to_string(placements), placements.size(),
                                         from->mesh()->device_mesh().to_string(),
                                         layout.placements().size()));
    }
    for (size_t axis = 0; axis < placements.size(); ++axis) {
      if (placements[axis].is_partial() && placements[axis] != layout.placements()[axis]) {
        throw ShardLayoutError(fmt::format(
            "{} cannot be redistributed to {}: a target is Shard or Replicate on every axis",
            to_string(layout.placements()), to_string(placements)));
      }
    }
    if (placements == layout.placements()) return from;
    const ShardLayout fresh =
        ShardLayout::split(layout.mesh_shape(), placements, layout.global_shape());
    std::vector<DimCut> cuts = fresh.cuts();
    for (size_t dim = 0; dim < cuts.size(); ++dim) {
      if (cuts[dim].axes == layout.cuts()[dim].axes) cuts[dim] = layout.cuts()[dim];
    }
    return make_spec(from->mesh(),
                     ShardLayout::with_cuts(layout.mesh_shape(), placements, std::move(cuts)));
  });
}

at::Tensor redistribute_local(const at::Tensor& local, const SpecPtr& from, const SpecPtr& to,
                              c10::intrusive_ptr<c10d::Work>* work) {
  (void)work;
  if (same(from, to)) return local;
  if (from->mesh() != to->mesh() || from->global_shape() != to->global_shape()) {
    throw ShardTensorError(fmt::format("cannot redistribute {} to {}", from->to_string(),
                                       to->to_string()));
  }
  at::Tensor tensor = local;
  SpecPtr present = from;
  Placements reduced = from->placements();
  for (size_t axis = 0; axis < reduced.size(); ++axis) {
    if (!reduced[axis].is_partial() || reduced[axis] == to->placements()[axis]) continue;
    if (tensor.is_same(local)) tensor = local.clone(at::MemoryFormat::Contiguous);
    detail::all_reduce(from->mesh()->axis_group(static_cast<int64_t>(axis)), tensor,
                       reduce_op(reduced[axis].op()))
        .wait();
    reduced[axis] = Replicate();
  }
  if (reduced != from->placements()) {
    present = make_spec(from->mesh(), from->layout().with_placements(reduced));
  }
  if (same(present, to)) return tensor;
  if (is_local(present->layout(), to->layout())) {
    if (numel(to->box()) == 0) return at::empty(to->local_shape(), local.options());
    return narrow_to(tensor, present->box(), to->box());
  }
  return exchange(tensor, *present, *to);
}

}  // namespace meshrun
