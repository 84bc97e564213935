// What happens to an operator without a rule of its own: it never guesses.
//
//   composite        it is taken apart into operators that have rules
//   all else         every sharded tensor is gathered, the operator runs on every rank, and its
//                    results are Replicate; what it wrote goes back to where it lay. One warning an
//                    operator names it and the bytes. MESHRUN_SHARD_STRICT=1: MissingShardRuleError
//   random numbers   MissingShardRuleError: each rank would draw its own
//   a view, c10d     ShardTensorError: a gathered copy would not be a view, and c10d's collectives
//                    take local tensors
//
// Internal to parallel/shard. All ranks of the mesh call alike.
#pragma once

#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"
#include "parallel/shard/dispatch/operator_signature.h"
#include "parallel/shard/tensor/shard_tensor_spec.h"

namespace meshrun {

enum class Announce : uint8_t { kWarn, kQuietly };

// Gathers, runs, wraps; kQuietly is the rule of operators whose result all ranks need whole.
void run_replicated(const c10::OperatorHandle& op, torch::jit::Stack* stack, Announce announce);

// The whole values of a sharded tensor, plain, without history; any other tensor as it is.
at::Tensor gathered(const at::Tensor& tensor);

// The mesh of all sharded tensors among the arguments, as in same_mesh.h.
ShardMesh::Ptr mesh_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// check_promotion() of the plain operands that a boxed kernel reads.
void check_plain_operands(const c10::OperatorHandle& op, const OperatorSignature& signature,
                          const torch::jit::Stack& stack);

}  // namespace meshrun
