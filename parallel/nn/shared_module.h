// A module whose parameters all ranks of a group share, while each rank feeds it other data: after
// each backward pass its gradients are those of all ranks together.
//
//   mark_module_as_shared(*encoder, "spatial_parallel");
//   loss.backward();      // the encoder's gradients are now summed over the group
//
// When a backward pass ends, what it has added to a parameter's gradient is summed (or averaged)
// over the ranks, in buckets; what the gradient held before is unchanged. So gradients accumulate:
// after two passes a parameter has the ranks' sum of both. A parameter that a rank's pass does not
// reach counts as zero on that rank; one that no rank's pass reaches is unchanged.
//
// Marking is collective: all ranks of the group mark equal modules, in the same order. A backward
// pass that reaches the module is collective too: it runs on all ranks of the group or on none. A
// rank whose loss does not depend on the module's parameters ties it to one of them
// (collectives/tie.h). Ranks that reach different modules get CollectiveMismatchError, also where
// the modules are alike.
//
// Parameters that the ranks of this group hold in pieces (sharded_parameters.h) are left out: each
// rank has all of its piece's gradient. Pieces of other groups fit if this group has one rank of
// each set of pieces; if it has several, marking raises. An FNO and a DistributedAFNO mark
// themselves over their spatial group: a second mark raises.
//
// A marked module may be moved or converted with to(), on all ranks between the same two backward
// passes. Gradients travel in the parameters' dtype at the end of each pass.
//
// float16 and bfloat16 gradients are added in float32. Sparse gradients become dense. With
// create_graph the sums are constants. torch::autograd::grad() does not change gradients, so
// nothing is summed. If a backward pass throws, the shared gradients are as they were before it.
//
// Inside a DistributedDataParallel over other groups a shared gradient is the average of the sums.
// Each of its ranks uses the module, also with find_unused_parameters. SharedModuleError with
// gradient_as_bucket_view, which leaves no memory to set gradients aside, and within no_sync(),
// after which the sums would not be averaged.
//
// The first backward pass compares the ranks' values of the parameters, by one small all-reduce:
// ranks that were seeded differently would train different models.
//
// The mark belongs to the parameters that require a gradient at the call: it is not part of the
// module's state, clone() does not copy it, and a parameter that is unfrozen later has none. Its
// gradients are then this rank's alone: mark a clone too, and unmark a module before it is marked
// again.
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

#include "parallel/base/arguments.h"
#include "parallel/manager/group_argument.h"
#include "parallel/nn/shared_module_error.h"

namespace torch::nn {
class Module;
}

namespace meshrun {

struct SharedModuleOptions {
  // The world where absent.
  GroupArgument process_group;
  // The parameters of its submodules too.
  BoolArgument recurse = true;
  // False: 16-bit floats travel as they are, on backends that add them so (NCCL).
  BoolArgument use_fp32_reduction = true;
  // The ranks' mean instead of their sum.
  BoolArgument mean = false;
  // Size of a bucket in MiB; parameters fill the buckets in the order of registration.
  double bucket_cap_mb = 25;
};

void mark_module_as_shared(torch::nn::Module& module, const SharedModuleOptions& options);
void mark_module_as_shared(torch::nn::Module& module,
                           const std::optional<std::string>& process_group = std::nullopt,
                           BoolArgument recurse = true, BoolArgument use_fp32_reduction = true);

// Not collective, but all ranks call it between the same two backward passes.
void unmark_module_as_shared(torch::nn::Module& module, BoolArgument recurse = true);

namespace detail {

// For modules that mark themselves, before their forward pass: marks those trainable parameters
// whose gradients are not summed over the group yet. No rank of it may hold a piece of them. Sends
// nothing where all are summed; where another rank has some that are not, its call and the forward
// pass's own exchange differ, which raises on both.
void share_unmarked_parameters(torch::nn::Module& module, const GroupArgument::Handle& group);

}  // namespace detail

}  // namespace meshrun
