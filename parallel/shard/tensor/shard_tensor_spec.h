// What a ShardTensor knows beside its local tensor: the mesh, the placements, and which rank holds
// which part.
//
// Immutable and shared: tensors of the same layout point to one spec where they can, and two specs
// are equal where mesh and layout are. Threads: any. Corresponds to PhysicsNeMo's ShardTensorSpec.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/ivalue.h"
#include "c10/util/ArrayRef.h"
#include "c10/util/Exception.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/base/arguments.h"
#include "parallel/shard/layout/shard_layout.h"
#include "parallel/shard/tensor/shard_mesh.h"

namespace meshrun {

// A caller's mistake. Ranks that called alike get the same sentence.
class ShardTensorError : public c10::ValueError {
  using ValueError::ValueError;
};

// An operator has no rule for a sharded tensor, and MESHRUN_SHARD_STRICT=1 forbids gathering it.
class MissingShardRuleError : public c10::NotImplementedError {
  using NotImplementedError::NotImplementedError;
};

// What redistribute/ keeps with a spec.
class SpecPlans {
 public:
  virtual ~SpecPlans() = default;
};

class ShardTensorSpec : public torch::CustomClassHolder {
 public:
  ShardTensorSpec(ShardMesh::Ptr mesh, ShardLayout layout);
  ~ShardTensorSpec() override;

  const ShardMesh::Ptr& mesh() const { return mesh_; }
  const ShardLayout& layout() const { return layout_; }
  const Placements& placements() const { return layout_.placements(); }
  const std::vector<int64_t>& global_shape() const { return layout_.global_shape(); }
  int64_t ndim() const { return layout_.ndim(); }
  bool has_partial() const { return layout_.has_partial(); }
  bool is_replicated() const { return layout_.is_replicated(); }
  bool is_sharded(IntArgument dim) const { return layout_.is_sharded(dim); }

  // This rank's part of the global tensor.
  const Box& box() const { return box_; }
  const std::vector<int64_t>& local_shape() const { return box_.sizes; }
  // Where this rank's shard along `mesh_dim` begins among those of the ranks along it; 0 where it
  // is not a Shard.
  int64_t offset(IntArgument mesh_dim) const;
  // Sizes of the shards along `mesh_dim`, at this rank's other coordinates; empty where it is not a
  // Shard.
  std::vector<int64_t> shard_sizes(IntArgument mesh_dim) const;

  bool operator==(const ShardTensorSpec& other) const {
    return this == &other || (mesh_ == other.mesh_ && layout_ == other.layout_);
  }
  // "Shard(1) of [8, 9] on dp=2 ..., this rank has [8, 4] at [0, 5]".
  std::string to_string() const;

  // Plans of redistributions that start at this spec; `make` makes them at first use.
  SpecPlans& plans(std::unique_ptr<SpecPlans> (*make)()) const;

  // c10 calls it when the last strong pointer goes; weak pointers may remain.
  void release_resources() override;

 private:
  const ShardMesh::Ptr mesh_;
  const ShardLayout layout_;
  const Box box_;
  mutable std::atomic<SpecPlans*> plans_{nullptr};  // made when asked for
};

using SpecPtr = c10::intrusive_ptr<ShardTensorSpec>;

inline bool same(const SpecPtr& a, const SpecPtr& b) { return a == b || *a == *b; }

SpecPtr make_spec(const ShardMesh::Ptr& mesh, ShardLayout layout);
// All axes Replicate.
ShardLayout replicated_layout(const ShardMesh& mesh, at::IntArrayRef shape);
SpecPtr replicated_spec(const ShardMesh::Ptr& mesh, at::IntArrayRef shape);

// Runs `call`, and turns what a layout finds wrong into a ShardTensorError.
template <typename Call>
auto with_shard_errors(const Call& call) {
  try {
    return call();
  } catch (const ShardLayoutError& error) {
    throw ShardTensorError(error.what());
  }
}

}  // namespace meshrun
