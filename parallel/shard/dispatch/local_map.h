// The steps out of a sharded tensor and back that autograd follows: what function handlers are made
// of, and what ShardTensor's methods call.
//
//   const at::Tensor x = to_local(input, spec);                // the part of this rank
//   const at::Tensor y = at::softmax(x, -1);                   // LibTorch's autograd, local
//   return from_local(y, spec);
//
//                    backward
//   to_local         the local gradient becomes the part of a sharded one, with `gradient`'s layout
//   from_local       the gradient is redistributed to gradient_spec(spec); its local part goes on
//   redistribute     the gradient is redistributed to gradient_spec() of what was given, or as
//                    asked
//
// A rank that computes with a replicated operand and its own part of the others has a summand of
// its gradient: it says partial_where_replicated(). All are differentiable again, and cost nothing
// beyond the call where no gradient is wanted. A tangent is an error (tangents.h). Threads and
// order: all ranks of the mesh call alike.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/shard/redistribute/redistribute.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"

namespace meshrun {

// `gradient`: the layout that the local gradients have together; null: gradient_spec() of the
// tensor's own.
at::Tensor to_local(const at::Tensor& tensor, const SpecPtr& gradient = {});
// A plain tensor is Replicate where `spec` is. `local` has the spec's local shape. `gradient`: the
// layout of the local gradients; null: gradient_spec(spec). Where it is Partial(sum) and `spec` is
// Replicate, one rank along the axis gets the gradient and the others zeros.
at::Tensor from_local(const at::Tensor& local, const SpecPtr& spec, const SpecPtr& gradient = {});
struct RedistributeForm {
  BoolArgument own_memory = false;  // the result never shares the tensor's
  BoolArgument async = false;       // its first use waits for the last transfer
};
// `gradient`: where the gradient goes; null: gradient_spec() of the tensor's own.
at::Tensor redistribute(const at::Tensor& tensor, const SpecPtr& to, const SpecPtr& gradient = {},
                        const RedistributeForm& form = {});

// A ShardTensor stays what it is; a plain one becomes Replicate on the mesh, and its gradient is
// plain, and whole (an announced leaf's where it is accumulated: promotion.h).
at::Tensor promote(const at::Tensor& tensor, const ShardMesh::Ptr& mesh);
// `replicated`: the spec that a plain tensor gets.
at::Tensor promote(const at::Tensor& tensor, const SpecPtr& replicated);

// `spec` with Partial(sum) on the axes where `spec` is Replicate and `computed` is Shard or
// Partial: the layout of the gradient of an operand that every rank used for its own part.
SpecPtr partial_where_replicated(const SpecPtr& spec, const SpecPtr& computed);

// The layout of `spec` with other placements on some axes.
SpecPtr with_placement(const SpecPtr& spec, IntArgument axis, const Placement& placement);
// Both reduce every Partial. The second also makes every axis Replicate that cuts one of `dims`.
SpecPtr without_partial(const SpecPtr& spec);
SpecPtr with_whole_dims(const SpecPtr& spec, const std::vector<int64_t>& dims);

}  // namespace meshrun
