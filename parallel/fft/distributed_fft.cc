#include "parallel/fft/distributed_fft.h"

#include <algorithm>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/core/ivalue.h"
#include "parallel/fft/fft_arguments.h"
#include "parallel/fft/fft_plan.h"
#include "torch/csrc/autograd/custom_function.h"

namespace meshrun {
namespace fft {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SavedPlan : torch::CustomClassHolder {
  explicit SavedPlan(std::shared_ptr<const FftPlan> kept) : plan(std::move(kept)) {}
  std::shared_ptr<const FftPlan> plan;
};

void save(AutogradContext* ctx, const std::shared_ptr<const FftPlan>& plan, Scale scale) {
  ctx->saved_data.emplace("plan", at::IValue::make_capsule(c10::make_intrusive<SavedPlan>(plan)));
  ctx->saved_data.emplace("scale", static_cast<int64_t>(scale));
}

std::shared_ptr<const FftPlan> saved_plan(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<SavedPlan>(ctx->saved_data.at("plan").toCapsule())
      ->plan;
}

Scale saved_scale(AutogradContext* ctx) {
  return static_cast<Scale>(ctx->saved_data.at("scale").toInt());
}

bool wants_gradient(const at::Tensor& tensor) {
  return c10::GradMode::is_enabled() && tensor.requires_grad();
}

}  // namespace

struct ForwardFunction : torch::autograd::Function<ForwardFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& field,
                            const std::shared_ptr<const FftPlan>& plan, Scale scale) {
    save(ctx, plan, scale);
    return plan->compute_forward(field, scale);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto plan = saved_plan(ctx);
    const at::Tensor& gradient = gradients[0];
    return {plan->inverse(gradient * plan->weights(0.5, gradient), saved_scale(ctx)), {}, {}};
  }
};

struct InverseFunction : torch::autograd::Function<InverseFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& spectrum,
                            const std::shared_ptr<const FftPlan>& plan, Scale scale) {
    save(ctx, plan, scale);
    return plan->compute_inverse(spectrum, scale);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto plan = saved_plan(ctx);
    const at::Tensor gradient = plan->forward(gradients[0], saved_scale(ctx));
    return {gradient * plan->weights(2, gradient), {}, {}};
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

// [..., dim0, dim1] as [N, dim0, dim1], transformed, and back.
at::Tensor run(const at::Tensor& input, const Arguments& arguments, const FftPlan& plan) {
  const at::Tensor moved = input.movedim({arguments.dim0, arguments.dim1}, {-2, -1});
  int64_t planes = 1;
  for (int64_t dim = 0; dim < moved.dim() - 2; ++dim) planes *= moved.size(dim);
  const at::Tensor flat = moved.reshape({planes, moved.size(-2), moved.size(-1)});
  const at::Tensor result = arguments.direction == Direction::kForward
                                ? plan.forward(flat, arguments.scale)
                                : plan.inverse(flat, arguments.scale);
  std::vector<int64_t> shape = moved.sizes().vec();
  shape[shape.size() - 2] = result.size(1);
  shape.back() = result.size(2);
  return result.reshape(shape).movedim({-2, -1}, {arguments.dim0, arguments.dim1});
}

at::Tensor transform(const at::Tensor& input, const FftOptions& options, Direction direction) {
  const Arguments arguments = read_arguments(input, options, direction);
  return run(input, arguments, *make_plan(input, options, arguments));
}

at::Tensor transform(const at::Tensor& input, const FftOptions& options, Direction direction,
                     std::shared_ptr<const FftPlan>& plan) {
  const Arguments arguments = read_arguments(input, options, direction);
  if (!plan) {
    plan = make_plan(input, options, arguments);
  } else if (const std::string problem = misfit(input, arguments, *plan); !problem.empty()) {
    plan->refuse(problem);
  }
  return run(input, arguments, *plan);
}

int64_t planes_of(const at::Tensor& input, const FftOptions& options) {
  int64_t planes = input.numel();
  for (const IntArgument& dim : options.dim) planes /= std::max<int64_t>(input.size(dim), 1);
  return planes;
}

}  // namespace
}  // namespace fft

at::Tensor distributed_rfft2(const at::Tensor& input, const FftOptions& options) {
  return fft::transform(input, options, fft::Direction::kForward);
}

at::Tensor distributed_irfft2(const at::Tensor& input, const FftOptions& options) {
  return fft::transform(input, options, fft::Direction::kInverse);
}

DistributedRFFT2::DistributedRFFT2(FftOptions options) : options_(std::move(options)) {}
DistributedIRFFT2::DistributedIRFFT2(FftOptions options) : options_(std::move(options)) {}

at::Tensor DistributedRFFT2::operator()(const at::Tensor& input) {
  at::Tensor output = fft::transform(input, options_, fft::Direction::kForward, plan_);
  planes_ = fft::planes_of(input, options_);
  element_size_ = static_cast<int64_t>(input.element_size());
  return output;
}

at::Tensor DistributedIRFFT2::operator()(const at::Tensor& input) {
  at::Tensor output = fft::transform(input, options_, fft::Direction::kInverse, plan_);
  planes_ = fft::planes_of(input, options_);
  element_size_ = static_cast<int64_t>(input.element_size()) / 2;
  return output;
}

std::string DistributedRFFT2::describe() const {
  return plan_ ? plan_->describe(planes_, element_size_) : "no call yet";
}

std::string DistributedIRFFT2::describe() const {
  return plan_ ? plan_->describe(planes_, element_size_) : "no call yet";
}

at::Tensor DistributedRFFT2::apply(const at::Tensor& input,
                                   const std::vector<std::optional<IntArgument>>& s,
                                   const std::vector<IntArgument>& dim, const std::string& norm) {
  return distributed_rfft2(input, {.s = s, .dim = dim, .norm = norm});
}

at::Tensor DistributedIRFFT2::apply(const at::Tensor& input,
                                    const std::vector<std::optional<IntArgument>>& s,
                                    const std::vector<IntArgument>& dim, const std::string& norm) {
  return distributed_irfft2(input, {.s = s, .dim = dim, .norm = norm});
}

}  // namespace meshrun
