// A layout in the making: whole and Replicate at first, then cut dimension by dimension.
//
// Values; pure, without LibTorch.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "parallel/shard/layout/shard_layout.h"

namespace meshrun {

class LayoutDraft {
 public:
  LayoutDraft(std::vector<int64_t> mesh_shape, const std::vector<int64_t>& shape);
  // A copy, for changes.
  explicit LayoutDraft(const ShardLayout& layout);

  const Placement& placement(int64_t axis) const { return placements_[static_cast<size_t>(axis)]; }
  bool is_cut(int64_t dim) const { return !cuts_[static_cast<size_t>(dim)].axes.empty(); }
  // Whether `dim` is whole and all axes of `cut` are Replicate.
  bool may_cut(int64_t dim, const DimCut& cut) const;
  // With no axes: nothing.
  void cut(int64_t dim, const DimCut& cut);
  // An axis that is not Shard.
  void set(int64_t axis, const Placement& placement);
  // Whole again, with that extent; its axes are Replicate.
  void make_whole(int64_t dim, int64_t extent);
  // The axes that are Partial become Replicate.
  void drop_partial();

  ShardLayout layout() const;

 private:
  std::vector<int64_t> mesh_shape_;
  Placements placements_;
  std::vector<DimCut> cuts_;
};

// Cut of a dimension of `extent` along these axes, by the split rule.
DimCut even_cut(const std::vector<int64_t>& mesh_shape, const std::vector<int64_t>& axes,
                int64_t extent);

}  // namespace meshrun
