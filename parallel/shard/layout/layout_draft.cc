#include "parallel/shard/layout/layout_draft.h"

#include <algorithm>

namespace meshrun {

LayoutDraft::LayoutDraft(std::vector<int64_t> mesh_shape, const std::vector<int64_t>& shape)
    : mesh_shape_(std::move(mesh_shape)), placements_(mesh_shape_.size()), cuts_(shape.size()) {
  for (size_t dim = 0; dim < shape.size(); ++dim) cuts_[dim].sizes = {shape[dim]};
}

LayoutDraft::LayoutDraft(const ShardLayout& layout)
    : mesh_shape_(layout.mesh_shape()), placements_(layout.placements()), cuts_(layout.cuts()) {}

bool LayoutDraft::may_cut(int64_t dim, const DimCut& cut) const {
  return !cut.axes.empty() && !is_cut(dim) &&
         std::all_of(cut.axes.begin(), cut.axes.end(),
                     [&](int64_t axis) { return placement(axis).is_replicate(); });
}

void LayoutDraft::cut(int64_t dim, const DimCut& cut) {
  if (cut.axes.empty()) return;
  cuts_[static_cast<size_t>(dim)] = cut;
  for (const int64_t axis : cut.axes) {
    placements_[static_cast<size_t>(axis)] = Placement::shard(dim);
  }
}

void LayoutDraft::set(int64_t axis, const Placement& placement) {
  placements_[static_cast<size_t>(axis)] = placement;
}

void LayoutDraft::make_whole(int64_t dim, int64_t extent) {
  DimCut& cut = cuts_[static_cast<size_t>(dim)];
  for (const int64_t axis : cut.axes) placements_[static_cast<size_t>(axis)] = Placement();
  cut = {{}, {extent}};
}

void LayoutDraft::drop_partial() {
  for (Placement& placement : placements_) {
    if (placement.is_partial()) placement = Placement();
  }
}

ShardLayout LayoutDraft::layout() const {
  return ShardLayout::with_cuts(mesh_shape_, placements_, cuts_);
}

DimCut even_cut(const std::vector<int64_t>& mesh_shape, const std::vector<int64_t>& axes,
                int64_t extent) {
  Placements placements(mesh_shape.size());
  for (const int64_t axis : axes) placements[static_cast<size_t>(axis)] = Placement::shard(0);
  return ShardLayout::split(mesh_shape, std::move(placements), {extent}).cuts()[0];
}

}  // namespace meshrun
