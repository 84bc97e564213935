// Meshes of a test's world, and whole tensors cut over them.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"

namespace meshrun {

struct TestMesh {
  std::string name;
  DeviceMesh mesh;
  // The last axis cuts `domain`; the first, where there are two, `batch`.
  Placements placements(int64_t batch, int64_t domain) const {
    if (mesh.ndim() == 1) return {Shard(domain)};
    return {Shard(batch), Shard(domain)};
  }
};

// The world's one mesh: (2, 2) of four ranks, else (n); `flat`: always (n).
inline TestMesh mesh_of(const JoinedWorld& world, bool flat = false) {
  if (world.size == 4 && !flat) {
    return {"dp x domain", world.manager.initialize_mesh({2, 2}, {"dp", "domain"})};
  }
  return {"domain", world.manager.initialize_mesh({world.size}, {"domain"})};
}

// This rank's part of `whole`, which all ranks have; in pieces of whole `units` rows along
// dimension 2 where that is cut.
inline ShardTensor cut(const at::Tensor& whole, const DeviceMesh& on, const Placements& placements,
                       int64_t unit = 1) {
  const ShardMesh::Ptr mesh = ShardMesh::of(on);
  std::vector<int64_t> shape = whole.sizes().vec();
  if (unit > 1) shape[2] /= unit;
  ShardLayout layout = ShardLayout::split(mesh->shape(), placements, shape);
  if (unit > 1) {
    std::vector<DimCut> cuts = layout.cuts();
    for (int64_t& size : cuts[2].sizes) size *= unit;
    layout = ShardLayout::with_cuts(mesh->shape(), placements, cuts);
  }
  const SpecPtr spec = make_spec(mesh, layout);
  at::Tensor part = whole;
  for (int64_t dim = 0; dim < whole.dim(); ++dim) {
    const auto at = static_cast<size_t>(dim);
    part = part.narrow(dim, spec->box().offsets[at], spec->box().sizes[at]);
  }
  return ShardTensor(part.contiguous(), spec);
}

}  // namespace meshrun
