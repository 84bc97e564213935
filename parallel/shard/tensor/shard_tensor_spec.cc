#include "parallel/shard/tensor/shard_tensor_spec.h"

#include <memory>
#include <numeric>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace meshrun {

ShardTensorSpec::ShardTensorSpec(ShardMesh::Ptr mesh, ShardLayout layout)
    : mesh_(std::move(mesh)), layout_(std::move(layout)), box_(layout_.box(mesh_->coordinate())) {}

ShardTensorSpec::~ShardTensorSpec() { delete plans_.load(); }

void ShardTensorSpec::release_resources() { delete plans_.exchange(nullptr); }

SpecPlans& ShardTensorSpec::plans(std::unique_ptr<SpecPlans> (*make)()) const {
  SpecPlans* plans = plans_.load(std::memory_order_acquire);
  if (plans != nullptr) return *plans;
  std::unique_ptr<SpecPlans> made = make();
  return plans_.compare_exchange_strong(plans, made.get()) ? *made.release() : *plans;
}

std::vector<int64_t> ShardTensorSpec::shard_sizes(IntArgument mesh_dim) const {
  const Placement& placement = placements()[static_cast<size_t>(mesh_dim)];
  if (!placement.is_shard()) return {};
  const DimCut& cut = layout_.cuts()[static_cast<size_t>(placement.dim())];
  std::vector<int64_t> coordinate = mesh_->coordinate();
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < mesh_->shape()[static_cast<size_t>(mesh_dim)]; ++i) {
    coordinate[static_cast<size_t>(mesh_dim)] = i;
    sizes.push_back(cut.sizes[static_cast<size_t>(layout_.piece(placement.dim(), coordinate))]);
  }
  return sizes;
}

int64_t ShardTensorSpec::offset(IntArgument mesh_dim) const {
  const std::vector<int64_t> sizes = shard_sizes(mesh_dim);
  if (sizes.empty()) return 0;
  return std::accumulate(sizes.begin(),
                         sizes.begin() + mesh_->coordinate()[static_cast<size_t>(mesh_dim)],
                         int64_t{0});
}

std::string ShardTensorSpec::to_string() const {
  return fmt::format("{} of [{}] on {}; this rank has [{}] at [{}]",
                     meshrun::to_string(placements()), fmt::join(global_shape(), ", "),
                     mesh_->device_mesh().to_string(), fmt::join(box_.sizes, ", "),
                     fmt::join(box_.offsets, ", "));
}

SpecPtr make_spec(const ShardMesh::Ptr& mesh, ShardLayout layout) {
  return c10::make_intrusive<ShardTensorSpec>(mesh, std::move(layout));
}

ShardLayout replicated_layout(const ShardMesh& mesh, at::IntArrayRef shape) {
  return ShardLayout::split(mesh.shape(), Placements(static_cast<size_t>(mesh.ndim())),
                            shape.vec());
}

SpecPtr replicated_spec(const ShardMesh::Ptr& mesh, at::IntArrayRef shape) {
  return make_spec(mesh, replicated_layout(*mesh, shape));
}

}  // namespace meshrun
