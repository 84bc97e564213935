#include "parallel/collectives/mappings.h"

#include <utility>
#include <vector>

#include "c10/util/Exception.h"
#include "parallel/base/split.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/collectives/call/local_dim.h"
#include "parallel/comm/v_collectives_of.h"

namespace meshrun {
namespace {

using at::Tensor;

// CopyTo and ScatterTo do not communicate, so that nothing compares their inputs: a node is made
// where a gradient is wanted, and a number taken on all ranks.
struct CopyTo : torch::autograd::Function<CopyTo> {
  static Tensor forward(AutogradContext* ctx, const Tensor& input,
                        const CollectivePtr& collective) {
    save_collective(ctx, collective, number_of_node(*collective->group, input));
    return input;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients);
};

Tensor copy_to(const Tensor& input, const CollectivePtr& collective) {
  if (wants_gradient(input)) return CopyTo::apply(input, collective);
  count_without_node(*collective->group, input);
  return input.view_as(input);
}

struct ReduceFrom : torch::autograd::Function<ReduceFrom> {
  static Tensor forward(AutogradContext* ctx, const Tensor& input,
                        const CollectivePtr& collective) {
    save_collective(ctx, collective);
    const Tensor sum = input.clone(at::MemoryFormat::Contiguous);
    return detail::all_reduce(collective->group, sum).wait();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return only_first(copy_to(gradients[0], saved_collective(ctx)->collective));
  }
};

variable_list CopyTo::backward(AutogradContext* ctx, const variable_list& gradients) {
  const auto kept = saved_collective(ctx);
  const NodeNumber::Scope scope(kept->number);
  return only_first(ReduceFrom::apply(gradients[0], kept->collective));
}

struct GatherFrom : torch::autograd::Function<GatherFrom> {
  static Tensor forward(AutogradContext* ctx, const Tensor& input,
                        const CollectivePtr& collective) {
    save_collective(ctx, collective);
    return launch(*collective, input);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients);
};

Tensor own_piece(const Tensor& input, const Collective& collective) {
  const Cut& cut = collective.spec.cut;
  return input.narrow(cut.dim, cut.begin(collective.rank), collective.own())
      .clone(at::MemoryFormat::Contiguous);
}

struct ScatterTo : torch::autograd::Function<ScatterTo> {
  static Tensor forward(AutogradContext* ctx, const Tensor& input,
                        const CollectivePtr& collective) {
    save_collective(ctx, collective, number_of_node(*collective->group, input));
    return own_piece(input, *collective);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto kept = saved_collective(ctx);
    const NodeNumber::Scope scope(kept->number);
    return only_first(GatherFrom::apply(gradients[0], kept->collective));
  }
};

Tensor scatter_to(const Tensor& input, const CollectivePtr& collective) {
  if (wants_gradient(input)) return ScatterTo::apply(input, collective);
  count_without_node(*collective->group, input);
  return own_piece(input, *collective);
}

variable_list GatherFrom::backward(AutogradContext* ctx, const variable_list& gradients) {
  return only_first(scatter_to(gradients[0], saved_collective(ctx)->collective));
}

}  // namespace

Tensor copy_to_parallel_region(const Tensor& input, const GroupArgument& group) {
  TORCH_CHECK_VALUE(input.defined(), "copy_to_parallel_region: the input is undefined");
  return copy_to(input, make_collective(group));
}

Tensor reduce_from_parallel_region(const Tensor& input, const GroupArgument& group) {
  const CollectivePtr collective = make_collective(group);
  if (!input.defined()) {
    detail::raise_on_all_ranks(collective->group, device_of(input, *collective->group),
                               "reduce_from_parallel_region: the input is undefined");
  }
  return ReduceFrom::apply(input, collective);
}

Tensor scatter_to_parallel_region(const Tensor& input, IntArgument dim,
                                  const GroupArgument& group) {
  const int64_t along = local_dim("scatter_to_parallel_region", input, dim);
  const CollectivePtr collective = make_collective(group);
  const std::vector<int64_t> pieces = compute_split_shapes(input.size(along), collective->world);
  collective->spec.cut = {along, Extents(pieces.begin(), pieces.end())};
  return scatter_to(input, collective);
}

Tensor gather_from_parallel_region(const Tensor& input, IntArgument dim, const Sizes& shapes,
                                   const GroupArgument& group) {
  const CollectivePtr collective = make_all_gather(input, shapes, dim, /*use_fp32=*/true, group);
  if (collective->is_wrong()) return launch(*collective, input);  // which raises it
  return GatherFrom::apply(input, collective);
}

}  // namespace meshrun
