#include "parallel/fft/distributed_fft.h"

#include <utility>

#include "ATen/core/ivalue.h"
#include "fmt/format.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/fft/fft_arguments.h"
#include "parallel/fft/fft_plan.h"
#include "torch/csrc/autograd/custom_function.h"

namespace meshrun {
namespace fft {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SavedPlan : torch::CustomClassHolder {
  SavedPlan(std::shared_ptr<const FftPlan> kept, const NodeNumber& its_number)
      : plan(std::move(kept)), number(its_number) {}
  const std::shared_ptr<const FftPlan> plan;
  const NodeNumber number;
};

void save(AutogradContext* ctx, const at::Tensor& input, const std::shared_ptr<const FftPlan>& plan,
          Scale scale) {
  ctx->saved_data.emplace("plan", at::IValue::make_capsule(c10::make_intrusive<SavedPlan>(
                                      plan, number_of_node(*plan->group(), input))));
  ctx->saved_data.emplace("scale", static_cast<int64_t>(scale));
}

c10::intrusive_ptr<SavedPlan> saved_plan(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<SavedPlan>(ctx->saved_data.at("plan").toCapsule());
}

Scale saved_scale(AutogradContext* ctx) {
  return static_cast<Scale>(ctx->saved_data.at("scale").toInt());
}

}  // namespace

struct ForwardFunction : torch::autograd::Function<ForwardFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& field,
                            const std::shared_ptr<const FftPlan>& plan, Scale scale) {
    save(ctx, field, plan, scale);
    return plan->compute_forward(field, scale);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto kept = saved_plan(ctx);
    const FftPlan& plan = *kept->plan;
    const NodeNumber::Scope scope(kept->number);
    const at::Tensor& gradient = gradients[0];
    return {plan.inverse(gradient * plan.weights(0.5, gradient), saved_scale(ctx)), {}, {}};
  }
};

struct InverseFunction : torch::autograd::Function<InverseFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& spectrum,
                            const std::shared_ptr<const FftPlan>& plan, Scale scale) {
    save(ctx, spectrum, plan, scale);
    return plan->compute_inverse(spectrum, scale);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto kept = saved_plan(ctx);
    const FftPlan& plan = *kept->plan;
    const NodeNumber::Scope scope(kept->number);
    const at::Tensor gradient = plan.forward(gradients[0], saved_scale(ctx));
    return {gradient * plan.weights(2, gradient), {}, {}};
  }
};

at::Tensor FftPlan::forward(const at::Tensor& field, Scale scale) const {
  if (wants_gradient(field)) return ForwardFunction::apply(field, shared_from_this(), scale);
  const c10::NoGradGuard no_grad;
  return compute_forward(field, scale);
}

at::Tensor FftPlan::inverse(const at::Tensor& spectrum, Scale scale) const {
  if (wants_gradient(spectrum)) return InverseFunction::apply(spectrum, shared_from_this(), scale);
  const c10::NoGradGuard no_grad;
  return compute_inverse(spectrum, scale);
}

namespace {

at::Tensor run(const Planes& planes, const Arguments& arguments, const FftPlan& plan) {
  return planes.restored(arguments.direction == Direction::kForward
                             ? plan.forward(planes.tensor, arguments.scale)
                             : plan.inverse(planes.tensor, arguments.scale));
}

at::Tensor transform(const at::Tensor& input, const FftOptions& options, Direction direction) {
  const Arguments arguments = read_arguments(input, options, direction);
  const auto plan = make_plan(input, options, arguments);
  return run(Planes(input, options.dim), arguments, *plan);
}

}  // namespace

PlannedTransform::PlannedTransform(FftOptions options, Direction direction)
    : options_(std::move(options)), direction_(direction) {}

at::Tensor PlannedTransform::operator()(const at::Tensor& input) {
  const Arguments arguments = read_arguments(input, options_, direction_);
  if (!plan_) {
    plan_ = make_plan(input, options_, arguments);
  } else if (const std::string problem = misfit(input, arguments, *plan_); !problem.empty()) {
    plan_->refuse(problem);
  }
  const Planes planes(input, options_.dim);
  planes_ = planes.tensor.size(0);
  element_size_ = static_cast<int64_t>(c10::elementSize(c10::toRealValueType(input.scalar_type())));
  // An inverse transform reads elements wherever they lie.
  const bool in_order = direction_ == Direction::kForward ? planes.tensor.is_contiguous() : true;
  input_bytes_copied_ =
      in_order && planes.tensor.is_alias_of(input) ? 0 : static_cast<int64_t>(input.nbytes());
  return run(planes, arguments, *plan_);
}

std::string PlannedTransform::describe() const {
  if (!plan_) return "no call yet";
  std::string text = plan_->describe(planes_, element_size_, direction_);
  if (input_bytes_copied_ > 0) {
    text += fmt::format("  {} bytes copied: input brought in order\n", input_bytes_copied_);
  }
  return text;
}

}  // namespace fft

at::Tensor distributed_rfft2(const at::Tensor& input, const FftOptions& options) {
  return fft::transform(input, options, fft::Direction::kForward);
}

at::Tensor distributed_irfft2(const at::Tensor& input, const FftOptions& options) {
  return fft::transform(input, options, fft::Direction::kInverse);
}

DistributedRFFT2::DistributedRFFT2(FftOptions options)
    : PlannedTransform(std::move(options), fft::Direction::kForward) {}
DistributedIRFFT2::DistributedIRFFT2(FftOptions options)
    : PlannedTransform(std::move(options), fft::Direction::kInverse) {}

at::Tensor DistributedRFFT2::apply(const at::Tensor& input,
                                   const ListArgument<std::optional<IntArgument>>& s,
                                   const ListArgument<IntArgument>& dim, const std::string& norm) {
  return distributed_rfft2(input, {.s = s, .dim = dim, .norm = norm});
}

at::Tensor DistributedIRFFT2::apply(const at::Tensor& input,
                                    const ListArgument<std::optional<IntArgument>>& s,
                                    const ListArgument<IntArgument>& dim, const std::string& norm) {
  return distributed_irfft2(input, {.s = s, .dim = dim, .norm = norm});
}

}  // namespace meshrun
