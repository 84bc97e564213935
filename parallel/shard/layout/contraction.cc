#include "parallel/shard/layout/contraction.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "fmt/format.h"

namespace meshrun {
namespace {

// What an axis does.
struct AxisUse {
  std::optional<int> label;              // it cuts this label
  std::optional<size_t> partial_factor;  // this factor's summands stay on its ranks

  bool is_free() const { return !label && !partial_factor; }
};

struct Plan {
  std::vector<AxisUse> axes;
  std::map<int, DimCut> cuts;  // of labels
};

std::map<int, int64_t> extents_of(const std::vector<Factor>& factors) {
  std::map<int, int64_t> extents;
  for (const Factor& factor : factors) {
    for (size_t d = 0; d < factor.labels.size(); ++d) {
      if (factor.labels[d] == kBroadcastLabel) continue;
      const auto [known, is_new] = extents.emplace(factor.labels[d], factor.shape[d]);
      if (known->second != factor.shape[d]) {
        throw ShardLayoutError(
            fmt::format("the operands of a product do not fit: {} and {} along one dimension",
                        known->second, factor.shape[d]));
      }
    }
  }
  return extents;
}

std::vector<size_t> largest_first(const std::vector<Factor>& factors) {
  const auto numel_of = [&](size_t i) {
    return std::accumulate(factors[i].shape.begin(), factors[i].shape.end(), int64_t{1},
                           std::multiplies<>());
  };
  std::vector<size_t> order(factors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return numel_of(a) > numel_of(b); });
  return order;
}

void claim(const Factor& factor, size_t index, const std::vector<int>& whole, Plan& plan) {
  for (size_t d = 0; d < factor.labels.size(); ++d) {
    const int label = factor.labels[d];
    const DimCut& cut = factor.layout->cuts()[d];
    const bool is_free = std::all_of(cut.axes.begin(), cut.axes.end(), [&](int64_t axis) {
      return plan.axes[static_cast<size_t>(axis)].is_free();
    });
    if (cut.axes.empty() || !is_free || label == kBroadcastLabel || plan.cuts.contains(label) ||
        std::find(whole.begin(), whole.end(), label) != whole.end()) {
      continue;
    }
    plan.cuts.emplace(label, cut);
    for (const int64_t axis : cut.axes) plan.axes[static_cast<size_t>(axis)].label = label;
  }
  for (size_t axis = 0; axis < plan.axes.size(); ++axis) {
    if (plan.axes[axis].is_free() && !factor.is_summand &&
        factor.layout->placements()[axis] == Partial()) {
      plan.axes[axis].partial_factor = index;
    }
  }
}

// Dimensions with these labels, cut as planned.
void cut_dimensions(const Plan& plan, const std::vector<int>& labels,
                    const std::vector<int64_t>& shape, Placements& placements,
                    std::vector<DimCut>& cuts) {
  for (size_t d = 0; d < labels.size(); ++d) {
    const auto found = plan.cuts.find(labels[d]);
    if (found == plan.cuts.end()) {
      cuts.push_back({{}, {shape[d]}});
      continue;
    }
    cuts.push_back(found->second);
    for (const int64_t axis : found->second.axes) {
      placements[static_cast<size_t>(axis)] = Placement::shard(static_cast<int64_t>(d));
    }
  }
}

}  // namespace

ContractionLayout contraction(const std::vector<int64_t>& mesh_shape,
                              const std::vector<Factor>& factors,
                              const std::vector<int>& result_labels,
                              const std::vector<int>& whole) {
  const std::map<int, int64_t> extents = extents_of(factors);
  Plan plan;
  plan.axes.resize(mesh_shape.size());
  for (const size_t i : largest_first(factors)) {
    if (factors[i].layout != nullptr) claim(factors[i], i, whole, plan);
  }

  ContractionLayout layouts;
  for (size_t i = 0; i < factors.size(); ++i) {
    Placements placements(mesh_shape.size());
    std::vector<DimCut> cuts;
    cut_dimensions(plan, factors[i].labels, factors[i].shape, placements, cuts);
    Placements gradient = placements;
    for (size_t axis = 0; axis < placements.size(); ++axis) {
      if (plan.axes[axis].partial_factor == i) {
        placements[axis] = Partial();
      } else if (placements[axis].is_replicate() && !plan.axes[axis].is_free()) {
        gradient[axis] = Partial();
      }
    }
    layouts.gradients.push_back(ShardLayout::with_cuts(mesh_shape, std::move(gradient), cuts));
    layouts.factors.push_back(
        ShardLayout::with_cuts(mesh_shape, std::move(placements), std::move(cuts)));
  }
  std::vector<int64_t> shape;
  for (const int label : result_labels) shape.push_back(extents.at(label));
  Placements placements(mesh_shape.size());
  std::vector<DimCut> cuts;
  cut_dimensions(plan, result_labels, shape, placements, cuts);
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis].is_replicate() && !plan.axes[axis].is_free()) placements[axis] = Partial();
  }
  layouts.result = ShardLayout::with_cuts(mesh_shape, std::move(placements), std::move(cuts));
  return layouts;
}

}  // namespace meshrun
