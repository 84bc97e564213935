#include "parallel/collectives/mappings.h"

#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "c10/core/WrapDimMinimal.h"
#include "c10/util/Exception.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/collectives/pieces.h"
#include "parallel/collectives/primitives.h"
#include "parallel/collectives/split.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using detail::ProcessGroupPtr;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What the backward pass needs beside the cotangent; held by the graph.
struct Region : torch::CustomClassHolder {
  Region(ProcessGroupPtr its_group, int64_t its_dim = 0, std::vector<int64_t> its_extents = {})
      : group(std::move(its_group)), dim(its_dim), extents(std::move(its_extents)) {}

  const ProcessGroupPtr group;
  const int64_t dim;
  const std::vector<int64_t> extents;  // by rank
};
using RegionPtr = c10::intrusive_ptr<Region>;

void remember(AutogradContext* context, RegionPtr region) {
  context->saved_data["region"] = c10::IValue::make_capsule(std::move(region));
}

RegionPtr region_of(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Region>(context->saved_data["region"].toCapsule());
}

struct CopyTo : torch::autograd::Function<CopyTo> {
  static Tensor forward(AutogradContext* context, const Tensor& input, RegionPtr region) {
    remember(context, std::move(region));
    return input;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients);
};

struct ReduceFrom : torch::autograd::Function<ReduceFrom> {
  static Tensor forward(AutogradContext* context, const Tensor& input, RegionPtr region) {
    const Tensor sum = input.clone(at::MemoryFormat::Contiguous);
    const Tensor reduced = detail::all_reduce(region->group, sum).wait();
    remember(context, std::move(region));
    return reduced;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {CopyTo::apply(gradients[0], region_of(context)), Tensor()};
  }
};

variable_list CopyTo::backward(AutogradContext* context, variable_list gradients) {
  return {ReduceFrom::apply(gradients[0], region_of(context)), Tensor()};
}

struct GatherFrom : torch::autograd::Function<GatherFrom> {
  static Tensor forward(AutogradContext* context, const Tensor& input, RegionPtr region) {
    const Tensor gathered =
        all_gather_v_wrapper(input, region->extents, region->dim, region->group);
    remember(context, std::move(region));
    return gathered;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients);
};

struct ScatterTo : torch::autograd::Function<ScatterTo> {
  static Tensor forward(AutogradContext* context, const Tensor& input, RegionPtr region) {
    const auto rank = static_cast<size_t>(region->group->getRank());
    int64_t begin = 0;
    for (size_t before = 0; before < rank; ++before) begin += region->extents[before];
    const Tensor piece =
        input.narrow(region->dim, begin, region->extents[rank]).clone(at::MemoryFormat::Contiguous);
    remember(context, std::move(region));
    return piece;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {GatherFrom::apply(gradients[0], region_of(context)), Tensor()};
  }
};

variable_list GatherFrom::backward(AutogradContext* context, variable_list gradients) {
  return {ScatterTo::apply(gradients[0], region_of(context)), Tensor()};
}

}  // namespace

Tensor copy_to_parallel_region(const Tensor& input, const GroupArgument& group) {
  TORCH_CHECK_VALUE(input.defined(), "copy_to_parallel_region: the input is undefined");
  return CopyTo::apply(input, c10::make_intrusive<Region>(group.get()));
}

Tensor reduce_from_parallel_region(const Tensor& input, const GroupArgument& group_argument) {
  const ProcessGroupPtr group = group_argument.get();
  if (!input.defined()) {
    detail::raise_on_all_ranks(group, detail::device_of(group, input),
                               "reduce_from_parallel_region: the input is undefined");
  }
  return ReduceFrom::apply(input, c10::make_intrusive<Region>(group));
}

Tensor scatter_to_parallel_region(const Tensor& input, int64_t dim,
                                  const GroupArgument& group_argument) {
  TORCH_CHECK_VALUE(input.defined(), "scatter_to_parallel_region: the input is undefined");
  TORCH_CHECK_INDEX(input.dim() > 0,
                    "scatter_to_parallel_region: a tensor without dimensions has no dim ", dim);
  dim = c10::maybe_wrap_dim(dim, input.dim());
  const ProcessGroupPtr group = group_argument.get();
  return ScatterTo::apply(
      input, c10::make_intrusive<Region>(group, dim,
                                         compute_split_shapes(input.size(dim), group->getSize())));
}

Tensor gather_from_parallel_region(const Tensor& input, int64_t dim, const Sizes& shapes,
                                   const GroupArgument& group_argument) {
  const ProcessGroupPtr group = group_argument.get();
  if (!input.defined()) {
    detail::raise_on_all_ranks(group, detail::device_of(group, input),
                               "gather_from_parallel_region: the input is undefined");
  }
  Pieces pieces = cut(Role::kPiece, shapes, input.sizes(), dim, group->getRank(), group->getSize());
  if (!pieces.problem.empty()) {
    detail::raise_on_all_ranks(group, input.device().type(), pieces.problem);
  }
  return GatherFrom::apply(
      input,
      c10::make_intrusive<Region>(
          group, pieces.dim, std::vector<int64_t>(pieces.extents.begin(), pieces.extents.end())));
}

}  // namespace meshrun
