// Losses: each rank takes the loss of its part, and says what that is of the whole. So the gradient
// that goes back is local, too, and nothing of the global size is ever made.
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/core/Reduction.h"
#include "ATen/ops/binary_cross_entropy.h"
#include "ATen/ops/binary_cross_entropy_with_logits.h"
#include "ATen/ops/huber_loss.h"
#include "ATen/ops/kl_div.h"
#include "ATen/ops/l1_loss.h"
#include "ATen/ops/mse_loss.h"
#include "ATen/ops/poisson_nll_loss.h"
#include "ATen/ops/smooth_l1_loss.h"
#include "ATen/ops/soft_margin_loss.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/operators/aligned.h"

namespace meshrun {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Locals = std::vector<Tensor>;
// LibTorch's loss of local operands, with a reduction.
using LocalLoss = std::function<Tensor(const Locals&, int64_t)>;

Tensor reduced(const Aligned& aligned, int64_t reduction, const LocalLoss& loss) {
  if (reduction == at::Reduction::None) {
    return from_local(loss(aligned.locals, reduction), aligned.spec);
  }
  const auto num_local = static_cast<double>(c10::multiply_integers(aligned.spec->local_shape()));
  const auto num_global = static_cast<double>(c10::multiply_integers(aligned.spec->global_shape()));
  Tensor part;
  if (reduction == at::Reduction::Mean && num_local > 0) {
    // Weighted by its size: a sum of 16-bit floats could overflow.
    part = loss(aligned.locals, reduction) * (num_local / num_global);
  } else {
    part = loss(aligned.locals, at::Reduction::Sum);
    if (reduction == at::Reduction::Mean) part = part / num_global;
  }
  return from_local(part, sum_spec(aligned.spec));
}

const Tensor& or_undefined(const OptionalTensor& tensor) {
  static const auto* undefined = new Tensor;
  return tensor ? *tensor : *undefined;
}
OptionalTensor or_absent(const Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

using Loss = Tensor(const Tensor&, const Tensor&, int64_t);

template <Loss* local, const char* name>
Tensor plain_loss(const Tensor& self, const Tensor& target, int64_t reduction) {
  return reduced(align(name, {&self, &target}), reduction,
                 [](const Locals& x, int64_t how) { return local(x[0], x[1], how); });
}

Tensor smooth_l1(const Tensor& self, const Tensor& target, int64_t reduction, double beta) {
  return reduced(
      align("smooth_l1_loss", {&self, &target}), reduction,
      [=](const Locals& x, int64_t how) { return at::smooth_l1_loss(x[0], x[1], how, beta); });
}

Tensor huber(const Tensor& self, const Tensor& target, int64_t reduction, double delta) {
  return reduced(
      align("huber_loss", {&self, &target}), reduction,
      [=](const Locals& x, int64_t how) { return at::huber_loss(x[0], x[1], how, delta); });
}

Tensor binary_cross_entropy(const Tensor& self, const Tensor& target, const OptionalTensor& weight,
                            int64_t reduction) {
  return reduced(align("binary_cross_entropy", {&self, &target, &or_undefined(weight)}), reduction,
                 [](const Locals& x, int64_t how) {
                   return at::binary_cross_entropy(x[0], x[1], or_absent(x[2]), how);
                 });
}

Tensor binary_cross_entropy_with_logits(const Tensor& self, const Tensor& target,
                                        const OptionalTensor& weight,
                                        const OptionalTensor& pos_weight, int64_t reduction) {
  return reduced(align("binary_cross_entropy_with_logits",
                       {&self, &target, &or_undefined(weight), &or_undefined(pos_weight)}),
                 reduction, [](const Locals& x, int64_t how) {
                   return at::binary_cross_entropy_with_logits(x[0], x[1], or_absent(x[2]),
                                                               or_absent(x[3]), how);
                 });
}

Tensor kl_div(const Tensor& self, const Tensor& target, int64_t reduction, bool log_target) {
  return reduced(align("kl_div", {&self, &target}), reduction, [=](const Locals& x, int64_t how) {
    return at::kl_div(x[0], x[1], how, log_target);
  });
}

Tensor poisson_nll(const Tensor& self, const Tensor& target, bool log_input, bool full, double eps,
                   int64_t reduction) {
  return reduced(align("poisson_nll_loss", {&self, &target}), reduction,
                 [=](const Locals& x, int64_t how) {
                   return at::poisson_nll_loss(x[0], x[1], log_input, full, eps, how);
                 });
}

constexpr char kMse[] = "mse_loss";
constexpr char kL1[] = "l1_loss";
constexpr char kSoftMargin[] = "soft_margin_loss";

const Movement kElementwise = {
    "any Shard, equal on all operands; Replicate beside it is cut in place",
    "a Partial is reduced; operands sharded otherwise move. The result of mean and sum is "
    "Partial(sum)",
    "nothing"};

const bool kRegistered =
    OperatorFamily("losses")
        .above_autograd("aten::mse_loss", &plain_loss<&at::mse_loss, kMse>, kElementwise)
        .above_autograd("aten::l1_loss", &plain_loss<&at::l1_loss, kL1>, kElementwise)
        .above_autograd("aten::soft_margin_loss", &plain_loss<&at::soft_margin_loss, kSoftMargin>,
                        kElementwise)
        .above_autograd("aten::smooth_l1_loss", &smooth_l1, kElementwise)
        .above_autograd("aten::huber_loss", &huber, kElementwise)
        .above_autograd("aten::binary_cross_entropy", &binary_cross_entropy, kElementwise)
        .above_autograd("aten::binary_cross_entropy_with_logits", &binary_cross_entropy_with_logits,
                        kElementwise)
        .above_autograd("aten::kl_div", &kl_div, kElementwise)
        .above_autograd("aten::poisson_nll_loss", &poisson_nll, kElementwise)
        .registered();

}  // namespace
}  // namespace meshrun
