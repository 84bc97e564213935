// What returns handles or numbers or keeps hooks on parameters, and so has neither gradient nor
// trace: the asynchronous transpose, reduce_loss and mark_module_as_shared. They are operators
// because tensors cross from Python that way without its libraries.
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "c10/util/Exception.h"
#include "parallel/base/collective_errors.h"
#include "parallel/collectives/call/collective.h"
#include "parallel/collectives/reduce_loss.h"
#include "parallel/collectives/transpose.h"
#include "parallel/nn/shared_module.h"
#include "python/extension/module_mirror.h"
#include "python/extension/operators.h"
#include "torch/library.h"
#include "torch/nn/module.h"

namespace meshrun::python {
namespace {

using at::Tensor;

// The ranks' extents along dim1, which they tell each other.
std::vector<int64_t> transpose_sizes(const Tensor& tensor, int64_t dim0, int64_t dim1,
                                     const std::string& group) {
  TORCH_CHECK_VALUE(!has_no_memory(tensor),
                    "distributed_transpose: without dim1_sizes the ranks tell each other their "
                    "extents along dim1, so that a traced call needs dim1_sizes");
  const c10::NoGradGuard no_grad;
  const Extents told =
      make_transpose(tensor, dim0, dim1, std::nullopt, group_named(group))->spec.received.sizes;
  return {told.begin(), told.end()};
}

std::tuple<Tensor, c10::intrusive_ptr<c10d::Work>> transpose_async(
    const Tensor& tensor, int64_t dim0, int64_t dim1, const std::vector<int64_t>& dim1_sizes,
    const std::string& group) {
  auto [result, work] = meshrun::distributed_transpose(tensor, dim0, dim1, group_named(group),
                                                       /*async_op=*/true, dim1_sizes);
  return {std::move(result), std::move(work)};
}

std::shared_ptr<torch::nn::Module> module_of(const std::vector<std::string>& names,
                                             const std::vector<Tensor>& parameters) {
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < names.size(); ++i) tensors.push_back({names[i], parameters.at(i)});
  return mirror_of(tensors);
}

void mark_as_shared(const std::vector<std::string>& names, const std::vector<Tensor>& parameters,
                    const std::string& group, bool use_fp32_reduction) {
  SharedModuleOptions options;
  options.process_group = group_named(group);
  options.use_fp32_reduction = use_fp32_reduction;
  mark_module_as_shared(*module_of(names, parameters), options);
}

void unmark_as_shared(const std::vector<std::string>& names,
                      const std::vector<Tensor>& parameters) {
  unmark_module_as_shared(*module_of(names, parameters));
}

std::optional<double> reduced_loss(double loss, int64_t dst_rank, bool mean) {
  return meshrun::reduce_loss(loss, dst_rank, mean);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(meshrun, m) {
  m.def("transpose_sizes", &transpose_sizes);
  m.def("transpose_async", &transpose_async);
  m.def("mark_as_shared", &mark_as_shared);
  m.def("unmark_as_shared", &unmark_as_shared);
  m.def("reduce_loss", &reduced_loss);
}

}  // namespace meshrun::python
