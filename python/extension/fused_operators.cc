// fused_all_reduce: see parallel/collectives/fused_all_reduce.h. The call that waits is an operator
// with a shape rule. The asynchronous one returns a handle, so it has none.
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/List.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "parallel/collectives/fused_all_reduce.h"
#include "python/extension/operators.h"
#include "torch/custom_class.h"
#include "torch/library.h"

namespace meshrun::python {
namespace {

using at::Tensor;
using at::TensorList;
using std::string_view;

using Keys = const c10::List<std::string>&;
using Fused = std::vector<Tensor>(TensorList, Keys, string_view, std::optional<double>,
                                  std::optional<at::ScalarType>, std::optional<string_view>);

struct FusedReduction : torch::CustomClassHolder {
  FusedReduction(std::vector<detail::FusedLeaf> leaves, std::string problem,
                 const FusedAllReduceOptions& options, bool async_op)
      : reduction(std::move(leaves), std::move(problem), options, async_op) {}
  detail::FusedReduction reduction;
};
using FusedPtr = c10::intrusive_ptr<FusedReduction>;

c10d::ReduceOp::RedOpType reduction_of(string_view op, std::string& problem) {
  if (op == "SUM") return c10d::ReduceOp::SUM;
  if (op == "AVG") return c10d::ReduceOp::AVG;
  if (op == "MIN") return c10d::ReduceOp::MIN;
  if (op == "MAX") return c10d::ReduceOp::MAX;
  problem = "fused_all_reduce: op is " + std::string(op) + "; SUM, AVG, MIN or MAX is expected";
  return c10d::ReduceOp::SUM;
}

// `group` is absent where the process is in no group, so that there is nobody to reduce with.
FusedPtr start(TensorList tensors, Keys keys, string_view op, std::optional<double> weight,
               std::optional<at::ScalarType> buffer_dtype, std::optional<string_view> group,
               bool async_op) {
  std::vector<detail::FusedLeaf> leaves;
  for (size_t i = 0; i < tensors.size(); ++i) leaves.push_back({keys.get(i), tensors[i]});
  std::string problem;
  FusedAllReduceOptions options;
  options.op = reduction_of(op, problem);
  options.weight = weight;
  options.buffer_dtype = buffer_dtype;
  if (group) options.group = group_named(*group);
  return c10::make_intrusive<FusedReduction>(std::move(leaves), std::move(problem), options,
                                             async_op);
}

std::vector<Tensor> fused_all_reduce_kernel(TensorList tensors, Keys keys, string_view op,
                                            std::optional<double> weight,
                                            std::optional<at::ScalarType> buffer_dtype,
                                            std::optional<string_view> group) {
  return start(tensors, keys, op, weight, buffer_dtype, group, /*async_op=*/false)
      ->reduction.wait();
}

std::vector<Tensor> fused_all_reduce_meta(TensorList tensors, Keys, string_view,
                                          std::optional<double>, std::optional<at::ScalarType>,
                                          std::optional<string_view>) {
  std::vector<Tensor> results;
  for (const Tensor& tensor : tensors) {
    results.push_back(at::empty_symint(tensor.sym_sizes(), tensor.options()));
  }
  return results;
}

// No gradient.
std::vector<Tensor> fused_all_reduce_autograd(TensorList tensors, Keys keys, string_view op,
                                              std::optional<double> weight,
                                              std::optional<at::ScalarType> buffer_dtype,
                                              std::optional<string_view> group) {
  static const auto found = find_operator<Fused>("meshrun::fused_all_reduce");
  const at::AutoDispatchBelowADInplaceOrView below;
  return found.call(tensors, keys, op, weight, buffer_dtype, group);
}

FusedPtr start_fused_all_reduce(const std::vector<Tensor>& tensors,
                                const std::vector<std::string>& keys, const std::string& op,
                                const std::optional<double>& weight,
                                const std::optional<at::ScalarType>& buffer_dtype,
                                const std::optional<std::string>& group) {
  return start(tensors, c10::List<std::string>(keys), op, weight, buffer_dtype,
               group ? std::optional<string_view>(*group) : std::nullopt, /*async_op=*/true);
}

bool is_fused_completed(const FusedPtr& handle) { return handle->reduction.is_completed(); }
std::vector<Tensor> wait_fused(const FusedPtr& handle) { return handle->reduction.wait(); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(meshrun, m) {
  m.def(
      "fused_all_reduce(Tensor[] tensors, str[] keys, str op=\"SUM\", float? weight=None, "
      "ScalarType? buffer_dtype=None, str? group=None) -> Tensor[]",
      {at::Tag::pt2_compliant_tag});
  m.class_<FusedReduction>("FusedReduction");
  m.def("start_fused_all_reduce", &start_fused_all_reduce);
  m.def("is_fused_completed", &is_fused_completed);
  m.def("wait_fused", &wait_fused);
}

#define MESHRUN_KERNEL(key, function) \
  TORCH_LIBRARY_IMPL(meshrun, key, m) { m.impl("fused_all_reduce", TORCH_FN(function)); }

MESHRUN_KERNEL(CPU, fused_all_reduce_kernel)
MESHRUN_KERNEL(CUDA, fused_all_reduce_kernel)
// A list without tensors has no device.
MESHRUN_KERNEL(CompositeExplicitAutograd, fused_all_reduce_kernel)
MESHRUN_KERNEL(Meta, fused_all_reduce_meta)
MESHRUN_KERNEL(Autograd, fused_all_reduce_autograd)

#undef MESHRUN_KERNEL

}  // namespace meshrun::python
