// Softmax and its logarithm. Where the dimension is cut, the largest score and the sum of weights
// are agreed by two small all-reduces, in float32 (float64 for float64).
#include <limits>
#include <utility>

#include "ATen/WrapDimUtils.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/_log_softmax.h"
#include "ATen/ops/_log_softmax_backward_data.h"
#include "ATen/ops/_softmax.h"
#include "ATen/ops/_softmax_backward_data.h"
#include "ATen/ops/amax.h"
#include "ATen/ops/full.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/operators/aligned.h"
#include "parallel/shard/operators/operands.h"

namespace meshrun {
namespace {

using at::Tensor;

enum class Form { kSoftmax, kLogSoftmax };

Tensor widened(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

Tensor largest(const Tensor& local, int64_t dim) {
  if (local.size(dim) > 0) return at::amax(local, {dim}, /*keepdim=*/true);
  std::vector<int64_t> shape = local.sizes().vec();
  shape[static_cast<size_t>(dim)] = 1;
  return at::full(shape, -std::numeric_limits<double>::infinity(), local.options());
}

template <Form form>
Tensor forward(const Tensor& self, int64_t dim, bool half_to_float) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  dim = at::maybe_wrap_dim(dim, self.dim());
  const SpecPtr spec = without_partial(spec_of(self));
  const Tensor local = local_as(self, spec);
  if (self.dim() == 0 || !spec->is_sharded(dim)) {
    return wrap(form == Form::kSoftmax ? at::_softmax(local, dim, half_to_float)
                                       : at::_log_softmax(local, dim, half_to_float),
                spec);
  }
  const Tensor scores = widened(local);
  const Tensor most = largest(scores, dim);
  all_reduce_over(spec, {dim}, most, PartialOp::kMax);
  Tensor result = scores - most;
  const Tensor weights = result.exp();
  const Tensor sum = weights.sum({dim}, /*keepdim=*/true);
  all_reduce_over(spec, {dim}, sum, PartialOp::kSum);
  result = form == Form::kSoftmax ? weights.div_(sum) : result.sub_(sum.log());
  return wrap(half_to_float ? result : result.to(local.scalar_type()), spec);
}

template <Form form>
Tensor backward(const Tensor& grad_output, const Tensor& output, int64_t dim,
                at::ScalarType input_dtype) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  dim = at::maybe_wrap_dim(dim, output.dim());
  const SpecPtr spec = without_partial(spec_of(is_shard_tensor(output) ? output : grad_output));
  const Tensor grad = local_as(grad_output, spec);
  const Tensor result = local_as(output, spec);
  if (output.dim() == 0 || !spec->is_sharded(dim)) {
    return wrap(form == Form::kSoftmax
                    ? at::_softmax_backward_data(grad, result, dim, input_dtype)
                    : at::_log_softmax_backward_data(grad, result, dim, input_dtype),
                spec);
  }
  const Tensor wide = widened(grad);
  const Tensor weights = form == Form::kSoftmax ? widened(result) : widened(result).exp();
  const Tensor sum = (form == Form::kSoftmax ? wide * weights : wide).sum({dim}, true);
  all_reduce_over(spec, {dim}, sum, PartialOp::kSum);
  const Tensor gradient =
      form == Form::kSoftmax ? (wide - sum).mul_(weights) : wide - weights * sum;
  return wrap(gradient.to(input_dtype), spec);
}

const Movement kSoftmax = {"any Shard, Replicate",
                           "where the dimension is cut: two numbers a row, all-reduced",
                           "one number a row, all-reduced"};

const bool kRegistered =
    OperatorFamily("softmax")
        .below_autograd("aten::_softmax", &forward<Form::kSoftmax>, kSoftmax)
        .below_autograd("aten::_softmax_backward_data", &backward<Form::kSoftmax>, kSoftmax)
        .below_autograd("aten::_log_softmax", &forward<Form::kLogSoftmax>, kSoftmax)
        .below_autograd("aten::_log_softmax_backward_data", &backward<Form::kLogSoftmax>, kSoftmax)
        .registered();

}  // namespace
}  // namespace meshrun
