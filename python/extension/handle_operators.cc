// What returns handles or numbers or keeps hooks on parameters, and so has neither gradient nor
// trace: fused_all_reduce, the asynchronous transpose, reduce_loss and mark_module_as_shared. They
// are operators because tensors cross from Python that way without its libraries.
#include <map>
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
#include "parallel/collectives/fused_all_reduce.h"
#include "parallel/collectives/reduce_loss.h"
#include "parallel/collectives/transpose.h"
#include "parallel/nn/shared_module.h"
#include "python/extension/operators.h"
#include "torch/custom_class.h"
#include "torch/library.h"
#include "torch/nn/module.h"

namespace meshrun::python {
namespace {

using at::Tensor;

struct FusedReduction : torch::CustomClassHolder {
  FusedReduction(std::vector<detail::FusedLeaf> leaves, std::string problem,
                 const FusedAllReduceOptions& options, bool async_op)
      : reduction(std::move(leaves), std::move(problem), options, async_op) {}
  detail::FusedReduction reduction;
};
using FusedPtr = c10::intrusive_ptr<FusedReduction>;

c10d::ReduceOp::RedOpType reduction_of(const std::string& op, std::string& problem) {
  if (op == "SUM") return c10d::ReduceOp::SUM;
  if (op == "AVG") return c10d::ReduceOp::AVG;
  if (op == "MIN") return c10d::ReduceOp::MIN;
  if (op == "MAX") return c10d::ReduceOp::MAX;
  if (problem.empty()) {
    problem = "fused_all_reduce: op is " + op + "; SUM, AVG, MIN or MAX is expected";
  }
  return c10d::ReduceOp::SUM;
}

// `problem`: found by the caller; empty: none. `group` is absent where the process is in no group,
// so that there is nobody to reduce with.
FusedPtr start_fused_all_reduce(const std::vector<std::string>& keys,
                                const std::vector<Tensor>& tensors, const std::string& op,
                                const std::optional<double>& weight,
                                const std::optional<at::ScalarType>& buffer_dtype,
                                const std::optional<std::string>& group, bool async_op,
                                std::string problem) {
  std::vector<detail::FusedLeaf> leaves;
  for (size_t i = 0; i < tensors.size(); ++i) leaves.push_back({keys.at(i), tensors[i]});
  FusedAllReduceOptions options;
  options.op = reduction_of(op, problem);
  options.weight = weight;
  options.buffer_dtype = buffer_dtype;
  if (group) options.group = group_named(*group);
  return c10::make_intrusive<FusedReduction>(std::move(leaves), std::move(problem), options,
                                             async_op);
}

bool is_fused_completed(const FusedPtr& handle) { return handle->reduction.is_completed(); }
std::vector<Tensor> wait_fused(const FusedPtr& handle) { return handle->reduction.wait(); }

// The ranks' extents along dim1, which they tell each other.
std::vector<int64_t> transpose_sizes(const Tensor& tensor, int64_t dim0, int64_t dim1,
                                     const std::string& group) {
  TORCH_CHECK_VALUE(!is_traced(tensor),
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

// A module of LibTorch that has a Python module's parameters, under their names.
struct Parameters : torch::nn::Module {
  void add(const std::string& name, const Tensor& parameter) {
    const size_t dot = name.find('.');
    if (dot == std::string::npos) {
      register_parameter(name, parameter, parameter.requires_grad());
      return;
    }
    std::shared_ptr<Parameters>& child = below[name.substr(0, dot)];
    if (!child) child = register_module(name.substr(0, dot), std::make_shared<Parameters>());
    child->add(name.substr(dot + 1), parameter);
  }
  std::map<std::string, std::shared_ptr<Parameters>> below;
};

std::shared_ptr<Parameters> module_of(const std::vector<std::string>& names,
                                      const std::vector<Tensor>& parameters) {
  auto module = std::make_shared<Parameters>();
  for (size_t i = 0; i < names.size(); ++i) module->add(names[i], parameters.at(i));
  return module;
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
  m.class_<FusedReduction>("FusedReduction");
  m.def("start_fused_all_reduce", &start_fused_all_reduce);
  m.def("is_fused_completed", &is_fused_completed);
  m.def("wait_fused", &wait_fused);
  m.def("transpose_sizes", &transpose_sizes);
  m.def("transpose_async", &transpose_async);
  m.def("mark_as_shared", &mark_as_shared);
  m.def("unmark_as_shared", &unmark_as_shared);
  m.def("reduce_loss", &reduced_loss);
}

}  // namespace meshrun::python
