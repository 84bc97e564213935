// One global tensor on many ranks. Ordinary LibTorch code runs on it unchanged: it is an at::Tensor
// of the global shape, whose memory is this rank's part.
//
//   auto mesh = manager.initialize_mesh({2, 2}, {"dp", "domain"});
//   ShardTensor x = ShardTensor::from_local(part, mesh, {Shard(0), Shard(2)});
//   at::Tensor loss = at::mse_loss(model->forward(x), target);       // global shapes, any operator
//   loss.backward();
//   at::Tensor whole = ShardTensor(x.grad()).full_tensor();
//
// Shapes, uneven and empty parts: layout/shard_layout.h. Dtypes: all that operators and the backend
// take. Gradients have the placements of their tensors, Replicate for a Partial one; inside a graph
// they may be Partial, and are reduced where they reach a leaf made here, an optimizer, or a
// redistribution. docs/shard_tensor.md lists what each operator moves.
//
// Threads: as tensors; all ranks of the mesh call alike, in the same order. Errors:
// ShardTensorError (a wrong call, the same on all ranks; ranks that disagree in from_local find out
// there), MissingShardRuleError, and those of the collectives. operator<< below prints a
// ShardTensor; LibTorch's own printing would need the global memory.
//
// Corresponds to physicsnemo.domain_parallel.ShardTensor. There is no DTensor in C++: from_local()
// with ShardingShapes::chunk() takes a part that was cut as DTensor cuts, and talks to nobody.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"

namespace meshrun {

// How from_local() knows the parts of the other ranks.
class ShardingShapes {
 public:
  // The ranks tell each other: one small all-gather, which also compares placements and dtype.
  static ShardingShapes infer() { return ShardingShapes(Kind::kInfer); }
  // As torch.chunk cuts the global shape, which must be given. Nothing is sent.
  static ShardingShapes chunk() { return ShardingShapes(Kind::kChunk); }
  // Mesh dimension to the shapes of the shards along it, at this rank's other coordinates. Nothing
  // is sent, so all ranks must give the same; a tensor dimension on two mesh dimensions has to be
  // inferred.
  static ShardingShapes given(std::map<int64_t, std::vector<std::vector<int64_t>>> shapes) {
    ShardingShapes given(Kind::kGiven);
    given.shapes_ = std::move(shapes);
    return given;
  }

  enum class Kind : uint8_t { kInfer, kChunk, kGiven };
  Kind kind() const { return kind_; }
  const std::map<int64_t, std::vector<std::vector<int64_t>>>& shapes() const { return shapes_; }

 private:
  explicit ShardingShapes(Kind kind) : kind_(kind) {}
  Kind kind_;
  std::map<int64_t, std::vector<std::vector<int64_t>>> shapes_;
};

class ShardTensor : public at::Tensor {
 public:
  ShardTensor() = default;
  // A leaf. `local_tensor` has the spec's local shape; its history is dropped (from_local keeps
  // it).
  ShardTensor(const at::Tensor& local_tensor, const SpecPtr& spec,
              BoolArgument requires_grad = false);
  // The same tensor. Raises ShardTensorError where it is not sharded.
  explicit ShardTensor(at::Tensor tensor);

  // The mesh is the manager's global one where absent, placements Replicate. Differentiable: a
  // summand gets the gradient of the sum, or its share of the mean's. Waits for a message where
  // shapes are inferred. Raises ShardTensorError on all ranks: parts that do not make a grid,
  // placements or dtypes that differ, a `global_shape` that the parts do not make, a local tensor
  // that is undefined or sharded on one of them; a Partial of another kind that requires a
  // gradient; `grad_placements` that cut otherwise than `placements` do.
  // `grad_placements`: to which layout the gradient is redistributed before its local part goes on,
  // unchanged; absent: that of the tensor, with Replicate for Partial.
  static ShardTensor from_local(
      const at::Tensor& local_tensor, const std::optional<DeviceMesh>& mesh = std::nullopt,
      const OptionalPlacements& placements = {},
      const ShardingShapes& sharding_shapes = ShardingShapes::infer(),
      const std::optional<std::vector<int64_t>>& global_shape = std::nullopt,
      const OptionalPlacements& grad_placements = {});

  // On all ranks, the whole tensor; that of a Replicate one is in the same memory.
  // `grad_placements`: the layout of the gradient that comes back.
  at::Tensor full_tensor(const OptionalPlacements& grad_placements = {}) const;
  // This rank's part, in the same memory, as a tensor of its own; a Partial stays one.
  // `grad_placements`: what the local gradients are together.
  at::Tensor to_local(const OptionalPlacements& grad_placements = {}) const;
  // Where this rank's shards begin, for every mesh dimension, and for one; 0 where not sharded.
  std::vector<int64_t> offsets() const;
  int64_t offsets(IntArgument mesh_dim) const;
  // To Shard and Replicate, on this tensor's mesh (absent) or on another one of the same ranks, in
  // any order. Gradients come back to this tensor's mesh. Never shares memory with this one.
  // `async_op`: the result's first use waits. All ranks of a mesh that is new connect its groups.
  ShardTensor redistribute(const std::optional<DeviceMesh>& mesh,
                           const OptionalPlacements& placements,
                           BoolArgument async_op = false) const;

  const SpecPtr& spec() const { return spec_of(*this); }
  const Placements& placements() const { return spec()->placements(); }

  // Whether function handlers run on this thread: since a ShardTensor was made in this process,
  // outside a ShardTensorPatchesGuard(false).
  static bool patches_enabled();

  // What an operator does with sharded tensors, from now on. `op`: "aten::flip". Below autograd:
  // `handler` gets tensors without history; local_of(), spec_of(), wrap() take them apart and
  // together. docs/shard_tensor.md shows one of each.
  template <typename Function>
  static void register_dispatch_handler(const std::string& op, Function&& handler) {
    register_operator({"registered by the program", op, HandlerLevel::kBelowAutograd, {}},
                      below_autograd_kernel(op, std::forward<Function>(handler)));
  }
  // Above autograd: `handler` makes its own graph (dispatch/local_map.h). Under autocast its
  // operands become what LibTorch's policy of `op` makes of them; without one, its parts cast.
  template <typename Function>
  static void register_function_handler(const std::string& op, Function&& handler) {
    register_operator({"registered by the program", op, HandlerLevel::kAboveAutograd, {}},
                      above_autograd_kernel(op, std::forward<Function>(handler)));
  }
  // The same for an operator that a library defined with TORCH_LIBRARY: "module::name.overload".
  template <typename Function>
  static void register_named_function_handler(const std::string& name, Function&& handler) {
    register_function_handler(name, std::forward<Function>(handler));
  }

  // Global shape, placements, this rank's part and its values.
  std::string to_string() const;
};

std::ostream& operator<<(std::ostream& out, const ShardTensor& tensor);

// Function handlers off, or on again, on this thread: composite operators are then taken apart.
class ShardTensorPatchesGuard {
 public:
  explicit ShardTensorPatchesGuard(BoolArgument enabled);
  ~ShardTensorPatchesGuard();
  ShardTensorPatchesGuard(const ShardTensorPatchesGuard&) = delete;
  ShardTensorPatchesGuard& operator=(const ShardTensorPatchesGuard&) = delete;

 private:
  bool excluded_before_;
};

}  // namespace meshrun
