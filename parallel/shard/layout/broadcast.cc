#include "parallel/shard/layout/broadcast.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace meshrun {
namespace {

bool is_summand(const Placement& placement) {
  return placement.is_partial() &&
         (placement.op() == PartialOp::kSum || placement.op() == PartialOp::kAvg);
}

// Whether the summands of `axis` may stay such; what the result then is.
bool keeps_partial(const std::vector<Operand>& operands, size_t axis, Linearity linearity,
                   Placement& kept) {
  std::vector<size_t> partial;
  bool any_shard = false;
  size_t read = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].is_read) continue;
    ++read;
    if (operands[i].layout == nullptr) continue;
    const Placement& placement = operands[i].layout->placements()[axis];
    any_shard |= placement.is_shard();
    if (!placement.is_partial()) continue;
    if (!is_summand(placement)) return false;
    partial.push_back(i);
    kept = placement;
  }
  if (partial.empty() || any_shard) return false;
  const auto same = [&](size_t i) { return operands[i].layout->placements()[axis] == kept; };
  switch (linearity) {
    case Linearity::kNone:
      return false;
    case Linearity::kFirst:
      return partial.size() == 1 && partial.front() == 0;
    case Linearity::kSum:
      // One operand is added to a number, which every rank would add.
      return partial.size() == read && read > 1 &&
             std::all_of(partial.begin(), partial.end(), same);
    case Linearity::kProduct:
      return partial.size() == 1;
  }
  return false;
}

std::vector<size_t> by_size(const std::vector<Operand>& operands, int fixed) {
  if (fixed >= 0) return {static_cast<size_t>(fixed)};
  const auto numel_of = [&](size_t i) {
    return std::accumulate(operands[i].shape.begin(), operands[i].shape.end(), int64_t{1},
                           std::multiplies<>());
  };
  std::vector<size_t> order(operands.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return numel_of(a) > numel_of(b); });
  return order;
}

}  // namespace

std::vector<int64_t> broadcast_shape(const std::vector<Operand>& operands) {
  size_t ndim = 0;
  for (const Operand& operand : operands) ndim = std::max(ndim, operand.shape.size());
  std::vector<int64_t> shape(ndim, 1);
  for (const Operand& operand : operands) {
    const size_t shift = ndim - operand.shape.size();
    for (size_t d = 0; d < operand.shape.size(); ++d) {
      int64_t& extent = shape[d + shift];
      if (extent == 1) {
        extent = operand.shape[d];
      } else if (operand.shape[d] != 1 && operand.shape[d] != extent) {
        throw ShardLayoutError(fmt::format("shapes do not broadcast: {} and {} along dimension {}",
                                           extent, operand.shape[d], d + shift));
      }
    }
  }
  return shape;
}

BroadcastLayout broadcast(const std::vector<int64_t>& mesh_shape,
                          const std::vector<Operand>& operands, Linearity linearity, int fixed) {
  const std::vector<int64_t> shape = broadcast_shape(operands);
  Placements placements(mesh_shape.size());
  std::vector<DimCut> cuts(shape.size());
  for (size_t d = 0; d < shape.size(); ++d) cuts[d].sizes = {shape[d]};

  for (const size_t i : by_size(operands, fixed)) {
    const Operand& operand = operands[i];
    if (operand.layout == nullptr) continue;
    const size_t shift = shape.size() - operand.shape.size();
    for (size_t d = 0; d < operand.shape.size(); ++d) {
      const DimCut& cut = operand.layout->cuts()[d];
      const bool taken = std::any_of(cut.axes.begin(), cut.axes.end(), [&](int64_t axis) {
        return placements[static_cast<size_t>(axis)].is_shard();
      });
      if (cut.axes.empty() || taken || operand.shape[d] != shape[d + shift] ||
          !cuts[d + shift].axes.empty()) {
        continue;
      }
      cuts[d + shift] = cut;
      for (const int64_t axis : cut.axes) {
        placements[static_cast<size_t>(axis)] = Placement::shard(static_cast<int64_t>(d + shift));
      }
    }
  }
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    Placement kept;
    if (placements[axis].is_shard() || !keeps_partial(operands, axis, linearity, kept)) continue;
    if (fixed >= 0 && operands[static_cast<size_t>(fixed)].layout->placements()[axis] != kept) {
      continue;
    }
    placements[axis] = kept;
  }

  BroadcastLayout result;
  for (const Operand& operand : operands) {
    const auto shift = static_cast<int64_t>(shape.size() - operand.shape.size());
    Placements own(placements.size());
    std::vector<DimCut> own_cuts(operand.shape.size());
    for (size_t d = 0; d < operand.shape.size(); ++d) {
      const DimCut& cut = cuts[d + static_cast<size_t>(shift)];
      const bool broadcasts = operand.shape[d] == 1 && shape[d + static_cast<size_t>(shift)] != 1;
      own_cuts[d].sizes = {operand.shape[d]};
      if (broadcasts || cut.axes.empty()) continue;
      own_cuts[d] = cut;
      for (const int64_t axis : cut.axes) {
        own[static_cast<size_t>(axis)] = Placement::shard(static_cast<int64_t>(d));
      }
    }
    for (size_t axis = 0; axis < placements.size(); ++axis) {
      if (placements[axis].is_partial() && operand.layout != nullptr &&
          operand.layout->placements()[axis].is_partial()) {
        own[axis] = operand.layout->placements()[axis];
      }
    }
    result.operands.push_back(
        ShardLayout::with_cuts(mesh_shape, std::move(own), std::move(own_cuts)));
  }
  result.result = ShardLayout::with_cuts(mesh_shape, std::move(placements), std::move(cuts));
  return result;
}

}  // namespace meshrun
