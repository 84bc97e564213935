#include "parallel/shard/layout/joined_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "parallel/shard/layout/view_layout.h"

namespace meshrun {
namespace {

int64_t elements(const ShardLayout& layout) {
  const std::vector<int64_t>& shape = layout.global_shape();
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// The pieces of all operands, laid end to end, where every rank's are one run.
std::optional<std::vector<int64_t>> pieces_in_order(const std::vector<ShardLayout>& operands,
                                                    size_t dim, const std::vector<int64_t>& axes) {
  std::vector<int64_t> sizes;
  size_t last = 0;
  for (const ShardLayout& operand : operands) {
    const DimCut& cut = operand.cuts()[dim];
    if (operand.global_shape()[dim] == 0) continue;
    if (cut.axes != axes) return std::nullopt;
    sizes.resize(cut.sizes.size());
    for (size_t piece = 0; piece < cut.sizes.size(); ++piece) {
      if (cut.sizes[piece] == 0) continue;
      if (piece < last) return std::nullopt;
      last = piece;
      sizes[piece] += cut.sizes[piece];
    }
  }
  if (sizes.empty()) return std::nullopt;
  return sizes;
}

}  // namespace

JoinedLayout joined(const std::vector<ShardLayout>& operands, int64_t dim) {
  const std::vector<int64_t>& mesh_shape = operands.front().mesh_shape();
  std::vector<int64_t> shape = operands.front().global_shape();
  const auto along = static_cast<size_t>(dim);
  shape[along] = 0;
  for (const ShardLayout& operand : operands) shape[along] += operand.global_shape()[along];

  std::vector<size_t> order(operands.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return elements(operands[a]) > elements(operands[b]);
  });
  Placements placements(mesh_shape.size());
  std::vector<DimCut> cuts(shape.size());
  for (const size_t i : order) {
    for (size_t d = 0; d < shape.size(); ++d) {
      const DimCut& cut = operands[i].cuts()[d];
      const bool taken = std::any_of(cut.axes.begin(), cut.axes.end(), [&](int64_t axis) {
        return placements[static_cast<size_t>(axis)].is_shard();
      });
      if (cut.axes.empty() || taken || !cuts[d].axes.empty()) continue;
      cuts[d] = cut;
      for (const int64_t axis : cut.axes) {
        placements[static_cast<size_t>(axis)] = Placement::shard(static_cast<int64_t>(d));
      }
    }
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    if (cuts[d].axes.empty()) cuts[d].sizes = {shape[d]};
  }
  if (!cuts[along].axes.empty()) {
    const auto in_order = pieces_in_order(operands, along, cuts[along].axes);
    Placements only(mesh_shape.size());
    for (const int64_t axis : cuts[along].axes) {
      only[static_cast<size_t>(axis)] = Placement::shard(dim);
    }
    cuts[along].sizes =
        in_order ? *in_order : ShardLayout::split(mesh_shape, only, shape).cuts()[along].sizes;
  }
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    const Placement first = operands.front().placements()[axis];
    if (placements[axis].is_shard() || !first.is_partial()) continue;
    const bool all = std::all_of(operands.begin(), operands.end(), [&](const ShardLayout& operand) {
      return operand.placements()[axis] == first;
    });
    if (all) placements[axis] = first;
  }

  JoinedLayout layout;
  layout.result = ShardLayout::with_cuts(mesh_shape, std::move(placements), std::move(cuts));
  int64_t begin = 0;
  for (const ShardLayout& operand : operands) {
    const int64_t end = begin + operand.global_shape()[along];
    layout.operands.push_back(sliced(layout.result, dim, {begin, end}));
    begin = end;
  }
  return layout;
}

}  // namespace meshrun
