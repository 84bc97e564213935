#include <ATen/Functions.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <tuple>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/c_api/call_error.h"
#include "parallel/c_api/models.h"

namespace meshrun::c_api {
namespace {

constexpr const char* kCrossEntropy = "cross_entropy";
constexpr int64_t kSum = at::Reduction::Sum;
// PyTorch's ignore_index.
constexpr int64_t kIgnoredClass = -100;

// Adam and AdamW.
template <typename Optimizer, typename OptimizerOptions>
std::unique_ptr<torch::optim::Optimizer> make_adam(std::vector<at::Tensor> parameters, double rate,
                                                   Options& given) {
  OptimizerOptions options(rate);
  const std::vector<double> betas =
      given.numbers("betas", {std::get<0>(options.betas()), std::get<1>(options.betas())});
  if (betas.size() != 2) {
    throw CallError(MESHRUN_INVALID_ARGUMENT,
                    fmt::format("the option betas has {} numbers: two are needed", betas.size()));
  }
  options.betas({betas[0], betas[1]});
  options.eps(given.number("eps", options.eps()));
  options.weight_decay(given.number("weight_decay", options.weight_decay()));
  options.amsgrad(given.boolean("amsgrad", options.amsgrad()));
  return std::make_unique<Optimizer>(std::move(parameters), options);
}

std::unique_ptr<torch::optim::Optimizer> make_sgd(std::vector<at::Tensor> parameters, double rate,
                                                  Options& given) {
  torch::optim::SGDOptions options(rate);
  options.momentum(given.number("momentum", options.momentum()));
  options.dampening(given.number("dampening", options.dampening()));
  options.weight_decay(given.number("weight_decay", options.weight_decay()));
  options.nesterov(given.boolean("nesterov", options.nesterov()));
  return std::make_unique<torch::optim::SGD>(std::move(parameters), options);
}

}  // namespace

Loss loss_of(const std::string& name) {
  const auto elements = [](const at::Tensor& target) {
    return static_cast<double>(target.numel());
  };
  if (name == "mse") {
    return {name, [](const auto& y, const auto& wanted) { return at::mse_loss(y, wanted, kSum); },
            elements};
  }
  if (name == "l1") {
    return {name, [](const auto& y, const auto& wanted) { return at::l1_loss(y, wanted, kSum); },
            elements};
  }
  if (name == "smooth_l1") {
    return {name,
            [](const auto& y, const auto& wanted) { return at::smooth_l1_loss(y, wanted, kSum); },
            elements};
  }
  if (name == kCrossEntropy) {
    return {name,
            [](const auto& y, const auto& wanted) {
              return at::cross_entropy_loss(y, wanted, /*weight=*/{}, kSum);
            },
            [](const at::Tensor& classes) {
              return static_cast<double>(classes.ne(kIgnoredClass).sum().item<int64_t>());
            }};
  }
  throw CallError(
      MESHRUN_INVALID_ARGUMENT,
      fmt::format("there is no loss \"{}\": use mse, l1, smooth_l1 or {}", name, kCrossEntropy));
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        std::vector<at::Tensor> parameters,
                                                        double learning_rate, Options& options) {
  if (!(learning_rate >= 0)) {
    throw CallError(MESHRUN_INVALID_ARGUMENT,
                    fmt::format("the learning rate is {}: it is not negative", learning_rate));
  }
  if (name == "adam") {
    return make_adam<torch::optim::Adam, torch::optim::AdamOptions>(std::move(parameters),
                                                                    learning_rate, options);
  }
  if (name == "adamw") {
    return make_adam<torch::optim::AdamW, torch::optim::AdamWOptions>(std::move(parameters),
                                                                      learning_rate, options);
  }
  if (name == "sgd") return make_sgd(std::move(parameters), learning_rate, options);
  throw CallError(MESHRUN_INVALID_ARGUMENT,
                  fmt::format("there is no optimizer \"{}\": use adam, adamw or sgd", name));
}

void check_target(const Loss& loss, const at::Tensor& output, const at::Tensor& target,
                  const std::string& name) {
  if (loss.name == kCrossEntropy) {
    if (target.scalar_type() == at::kLong) return;
    throw CallError(MESHRUN_INVALID_ARGUMENT,
                    fmt::format("{} has dtype {}: cross_entropy takes classes as int64", name,
                                c10::toString(target.scalar_type())));
  }
  if (output.sizes() == target.sizes() && output.scalar_type() == target.scalar_type()) return;
  throw CallError(
      MESHRUN_INVALID_ARGUMENT,
      fmt::format("{} is {} of [{}] as the model sees it, and the model's output is {} of [{}]",
                  name, c10::toString(target.scalar_type()), fmt::join(target.sizes(), ", "),
                  c10::toString(output.scalar_type()), fmt::join(output.sizes(), ", ")));
}

}  // namespace meshrun::c_api
