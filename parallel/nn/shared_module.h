// A module whose parameters all ranks of a group share, while each rank feeds it other data: after
// each backward pass its gradients are those of all ranks together.
//
//   mark_module_as_shared(*encoder, "spatial_parallel");
//   loss.backward();      // the encoder's gradients are now summed over the group
//
// What a backward pass adds to a parameter's gradient is summed (or averaged) over the ranks, in
// buckets, when the pass ends; what the gradient held before is left as it is. So gradients
// accumulate: after two passes a parameter has the ranks' sum of both. A parameter that a rank's
// pass does not reach counts as zero there; one that no rank's pass reaches is left alone.
//
// Marking is collective: all ranks of the group mark alike modules, in the same order. So is every
// backward pass that reaches the module: on all ranks of the group or on none. A rank whose loss
// does not depend on any of the module's parameters ties it to one of them (collectives/tie.h).
//
// Gradients of dtype float16 and bfloat16 are added in float32. Sparse ones become dense. With
// create_graph the sums are constants. torch::autograd::grad() leaves gradients alone, and so they
// are not summed. Where a backward pass throws, the shared gradients are as they were before.
//
// Inside of a DistributedDataParallel over other groups a shared gradient is
// the average of the sums. Not with gradient_as_bucket_view, which leaves nowhere to set gradients
// aside, nor with no_sync(), whose sums would not be averaged later.
//
// The mark is beside the module: it lives with its parameters, is not part of its state, and is not
// copied by clone().
//
// Threads: one at a time per module, as for any LibTorch module. Errors: SharedModuleError;
// UninitializedError and UndefinedGroupError; from the backward pass those of collectives
// (parallel/base/collective_errors.h).
//
// Corresponds to physicsnemo.distributed.utils.mark_module_as_shared, which sums again what earlier
// passes have summed.
#pragma once

#include <optional>
#include <string>

#include "c10/util/Exception.h"
#include "parallel/collectives/group_argument.h"

namespace torch::nn {
class Module;
}

namespace meshrun {

// On every rank, from mark_module_as_shared: a parameter is marked already, there is nothing to
// train, an option is wrong, or the ranks' modules or options differ. Here alone, from
// unmark_module_as_shared: a parameter is not marked.
class SharedModuleError : public c10::Error {
  using Error::Error;
};

struct SharedModuleOptions {
  // The world where absent.
  GroupArgument process_group;
  // Also what its submodules hold.
  bool recurse = true;
  // False: 16-bit floats travel as they are, on backends that add them so (NCCL).
  bool use_fp32_reduction = true;
  // The ranks' mean instead of their sum.
  bool mean = false;
  // Of a bucket, in MiB; parameters fill them in the order of registration.
  double bucket_cap_mb = 25;
};

void mark_module_as_shared(torch::nn::Module& module, const SharedModuleOptions& options);
void mark_module_as_shared(torch::nn::Module& module,
                           const std::optional<std::string>& process_group = std::nullopt,
                           bool recurse = true, bool use_fp32_reduction = true);

// Not collective, but to be called on all ranks between the same two backward passes.
void unmark_module_as_shared(torch::nn::Module& module, bool recurse = true);

}  // namespace meshrun
