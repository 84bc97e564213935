#include "parallel/collectives/mappings.h"

#include <utility>
#include <vector>

#include "c10/util/Exception.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/collectives/differentiable.h"
#include "parallel/collectives/local_dim.h"
#include "parallel/collectives/split.h"
#include "parallel/comm/v_collectives_of.h"

namespace meshrun {
namespace {

using at::Tensor;

struct CopyTo : torch::autograd::Function<CopyTo> {
  static Tensor forward(AutogradContext* ctx, const Tensor& input, const ExchangePtr& exchange) {
    save_exchange(ctx, exchange);
    return input;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients);
};

struct ReduceFrom : torch::autograd::Function<ReduceFrom> {
  static Tensor forward(AutogradContext* ctx, const Tensor& input, const ExchangePtr& exchange) {
    save_exchange(ctx, exchange);
    const Tensor sum = input.clone(at::MemoryFormat::Contiguous);
    return detail::all_reduce(exchange->group, sum).wait();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return only_first(CopyTo::apply(gradients[0], saved_exchange(ctx)));
  }
};

variable_list CopyTo::backward(AutogradContext* ctx, const variable_list& gradients) {
  return only_first(ReduceFrom::apply(gradients[0], saved_exchange(ctx)));
}

struct GatherFrom : torch::autograd::Function<GatherFrom> {
  static Tensor forward(AutogradContext* ctx, const Tensor& input, const ExchangePtr& exchange) {
    save_exchange(ctx, exchange);
    return all_gather(input, *exchange, {});
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients);
};

struct ScatterTo : torch::autograd::Function<ScatterTo> {
  static Tensor forward(AutogradContext* ctx, const Tensor& input, const ExchangePtr& exchange) {
    save_exchange(ctx, exchange);
    int64_t begin = 0;
    for (int rank = 0; rank < exchange->rank; ++rank) {
      begin += exchange->sizes[static_cast<size_t>(rank)];
    }
    return input.narrow(exchange->dim, begin, exchange->own()).clone(at::MemoryFormat::Contiguous);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return only_first(GatherFrom::apply(gradients[0], saved_exchange(ctx)));
  }
};

variable_list GatherFrom::backward(AutogradContext* ctx, const variable_list& gradients) {
  return only_first(ScatterTo::apply(gradients[0], saved_exchange(ctx)));
}

}  // namespace

Tensor copy_to_parallel_region(const Tensor& input, const GroupArgument& group) {
  TORCH_CHECK_VALUE(input.defined(), "copy_to_parallel_region: the input is undefined");
  return CopyTo::apply(input, make_exchange(group));
}

Tensor reduce_from_parallel_region(const Tensor& input, const GroupArgument& group) {
  const ExchangePtr exchange = make_exchange(group);
  if (!input.defined()) {
    detail::raise_on_all_ranks(exchange->group, device_of(input, *exchange->group),
                               "reduce_from_parallel_region: the input is undefined");
  }
  return ReduceFrom::apply(input, exchange);
}

Tensor scatter_to_parallel_region(const Tensor& input, IntArgument dim,
                                  const GroupArgument& group) {
  const int64_t along = local_dim("scatter_to_parallel_region", input, dim);
  const ExchangePtr exchange = make_exchange(group);
  const std::vector<int64_t> pieces = compute_split_shapes(input.size(along), exchange->world);
  exchange->dim = along;
  exchange->sizes.assign(pieces.begin(), pieces.end());
  return ScatterTo::apply(input, exchange);
}

Tensor gather_from_parallel_region(const Tensor& input, IntArgument dim, const Sizes& shapes,
                                   const GroupArgument& group) {
  const ExchangePtr exchange = make_all_gather(input, shapes, dim, /*use_fp32=*/true, group);
  if (!exchange->problem.empty()) return all_gather(input, *exchange, {});  // which raises it
  return GatherFrom::apply(input, exchange);
}

}  // namespace meshrun
