#include <memory>
#include <utility>

#include "ATen/ATen.h"
#include "ATen/autocast_mode.h"
#include "parallel/shard/redistribute/redistribute.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/shard/operator_cases.h"
#include "torch/nn/utils/clip_grad.h"
#include "torch/optim/adam.h"
#include "torch/optim/adamw.h"
#include "torch/optim/sgd.h"

namespace meshrun {
namespace {

// A leaf of the layout of `tensor`.
at::Tensor leaf_like(const at::Tensor& tensor) {
  if (!is_shard_tensor(tensor)) return tensor.detach().clone().set_requires_grad(true);
  return ShardTensor(local_of(tensor).clone(), gradient_spec(spec_of(tensor)), true);
}

// The weight's gradient is a sum over the rows of the input, which ranks share.
OperatorCase training(Draw& draw) {
  const int64_t kind = draw.integer(0, 2);
  const bool clips = draw.chance(0.5);
  const char* names[] = {"SGD", "Adam", "AdamW"};
  return {names[kind],
          {draw.normal({7, 5}), draw.normal({4, 5}), draw.normal({4})},
          [kind, clips](const Tensors& t) {
            const at::Tensor input = t[0].detach();
            const Tensors parameters = {leaf_like(t[1]), leaf_like(t[2])};
            std::unique_ptr<torch::optim::Optimizer> optimizer;
            if (kind == 0) {
              optimizer = std::make_unique<torch::optim::SGD>(
                  parameters, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
            } else if (kind == 1) {
              optimizer = std::make_unique<torch::optim::Adam>(
                  parameters, torch::optim::AdamOptions(0.1).amsgrad(true));
            } else {
              optimizer = std::make_unique<torch::optim::AdamW>(parameters,
                                                                torch::optim::AdamWOptions(0.1));
            }
            for (int step = 0; step < 3; ++step) {
              optimizer->zero_grad();
              const at::Tensor y = at::linear(input, parameters[0], parameters[1]);
              at::mean(y * y).backward();
              if (clips) torch::nn::utils::clip_grad_norm_(parameters, 0.5);
              optimizer->step();
            }
            return Tensors{parameters[0].detach(), parameters[1].detach()};
          },
          Equality::kRounding,
          true,
          {},
          {},
          true};
}

OperatorCase lists(Draw& draw) {
  const std::vector<int64_t> shape = {draw.extent(), draw.extent()};
  return {
      "foreach",
      {draw.normal(shape), draw.normal({draw.extent()}), draw.normal(shape), draw.positive(shape)},
      [](const Tensors& t) {
        const Tensors some = {t[0], t[1]};
        Tensors results = at::_foreach_add(some, 2.0);
        const auto append = [&](const Tensors& more) {
          results.insert(results.end(), more.begin(), more.end());
        };
        append(at::_foreach_mul(some, some));
        append(at::_foreach_sub(Tensors{t[0]}, Tensors{t[2]}, 0.5));
        append(at::_foreach_div(Tensors{t[0]}, Tensors{t[3]}));
        append(at::_foreach_sqrt(Tensors{t[3]}));
        append(at::_foreach_addcmul(Tensors{t[0]}, Tensors{t[2]}, Tensors{t[3]}, 0.5));
        append(at::_foreach_addcdiv(Tensors{t[0]}, Tensors{t[2]}, Tensors{t[3]}, 0.5));
        append(at::_foreach_lerp(Tensors{t[0]}, Tensors{t[2]}, 0.3));
        append(at::_foreach_norm(Tensors{t[0].detach(), t[1].detach()}));
        const Tensors written = {t[0].detach() * 1, t[1].detach() * 1};
        at::_foreach_mul_(written, 2.0);
        at::_foreach_add_(written, written, 0.5);
        at::_foreach_lerp_(Tensors{written[0]}, Tensors{t[2].detach()}, 0.3);
        at::_foreach_copy_(Tensors{written[0]}, Tensors{t[3].detach()});
        at::_foreach_zero_(Tensors{written[1]});
        append(written);
        return results;
      }};
}

// All of the others, within the domain of each.
OperatorCase more_lists(Draw& draw) {
  using Unary = std::vector<at::Tensor> (*)(at::TensorList);
  static const std::vector<Unary> kUnary = {
      &at::_foreach_abs,   &at::_foreach_acos,   &at::_foreach_asin,    &at::_foreach_atan,
      &at::_foreach_ceil,  &at::_foreach_cos,    &at::_foreach_cosh,    &at::_foreach_erf,
      &at::_foreach_erfc,  &at::_foreach_exp,    &at::_foreach_expm1,   &at::_foreach_floor,
      &at::_foreach_frac,  &at::_foreach_lgamma, &at::_foreach_log,     &at::_foreach_log10,
      &at::_foreach_log1p, &at::_foreach_log2,   &at::_foreach_neg,     &at::_foreach_reciprocal,
      &at::_foreach_round, &at::_foreach_rsqrt,  &at::_foreach_sigmoid, &at::_foreach_sign,
      &at::_foreach_sin,   &at::_foreach_sinh,   &at::_foreach_sqrt,    &at::_foreach_tan,
      &at::_foreach_tanh,  &at::_foreach_trunc};
  const auto between = [&](std::vector<int64_t> shape) {
    return at::sigmoid(draw.normal(shape)) * 0.8 + 0.1;
  };
  return {"foreach, one by one",
          {between({draw.extent(), draw.extent()}), between({draw.extent()})},
          [](const Tensors& t) {
            const Tensors some = {t[0], t[1]};
            const Tensors plain = {t[0].detach(), t[1].detach()};
            Tensors results;
            const auto append = [&](const Tensors& more) {
              results.insert(results.end(), more.begin(), more.end());
            };
            for (const Unary call : kUnary) append(call(some));
            append(at::_foreach_clamp_max(some, 0.6));
            append(at::_foreach_clamp_min(some, 0.4));
            append(at::_foreach_maximum(some, 0.3));
            append(at::_foreach_minimum(some, 0.7));
            append(at::_foreach_pow(some, 3));
            append(at::_foreach_max(plain));
            return results;
          }};
}

OperatorCase fused(Draw& draw) {
  const std::vector<int64_t> shape = {draw.extent(), draw.extent()};
  const bool is_adamw = draw.chance(0.5);
  OperatorCase drawn{
      "fused Adam",
      {draw.normal(shape), draw.normal(shape), draw.normal(shape), draw.positive(shape)},
      [is_adamw](const Tensors& t) {
        const Tensors parameter = {t[0].detach() * 1};
        const Tensors gradient = {t[1].detach()};
        const Tensors average = {t[2].detach() * 1};
        const Tensors square = {t[3].detach() * 1};
        const Tensors step = {at::ones({}, t[0].options().dtype(at::kFloat))};
        if (is_adamw) {
          at::_fused_adamw_(parameter, gradient, average, square, {}, step, 0.1, 0.9, 0.99, 0.01,
                            1e-8, false, false);
        } else {
          at::_fused_adam_(parameter, gradient, average, square, {}, step, 0.1, 0.9, 0.99, 0.01,
                           1e-8, false, false);
        }
        return Tensors{parameter[0], average[0], square[0]};
      }};
  return drawn;
}

OperatorCase fused_without_averages(Draw& draw) {
  const std::vector<int64_t> shape = {draw.extent(), draw.extent()};
  const bool is_adagrad = draw.chance(0.5);
  return {is_adagrad ? "fused Adagrad" : "fused SGD",
          {draw.normal(shape), draw.normal(shape), draw.positive(shape)},
          [is_adagrad](const Tensors& t) {
            const Tensors parameter = {t[0].detach() * 1};
            const Tensors gradient = {t[1].detach()};
            const Tensors state = {t[2].detach() * 1};
            if (is_adagrad) {
              const Tensors step = {at::ones({}, t[0].options().dtype(at::kFloat))};
              at::_fused_adagrad_(parameter, gradient, state, step, 0.1, 0.01, 0.02, 1e-8, false);
            } else {
              at::_fused_sgd_(parameter, gradient, state, 0.01, 0.9, 0.1, 0.0, true, false, false);
            }
            return Tensors{parameter[0], state[0]};
          }};
}

struct Autocast {
  explicit Autocast(at::DeviceType its_device) : device(its_device) {
    at::autocast::set_autocast_enabled(device, true);
    at::autocast::set_autocast_dtype(device, at::kBFloat16);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device, false);
  }

  const at::DeviceType device;
};

// The results' types are LibTorch's; integers hold them.
OperatorCase autocast(Draw& draw) {
  const int64_t m = draw.extent(), k = draw.extent(), n = draw.extent();
  return {"autocast",
          {draw.normal({2, m, k}), draw.normal({n, k}), draw.normal({n}), draw.normal({k})},
          [](const Tensors& t) {
            const Autocast on(t[0].device().type());
            const at::Tensor x = t[0].to(at::kFloat);
            const at::Tensor w = t[1].to(at::kFloat);
            const Tensors results = {at::linear(x, w, t[2].to(at::kFloat)),
                                     at::mm(w, w.transpose(0, 1)), at::matmul(x, w.transpose(0, 1)),
                                     at::layer_norm(x, {x.size(2)}, t[3].to(at::kFloat)),
                                     at::prod(x, 1)};
            std::vector<int64_t> types;
            for (const at::Tensor& result : results) {
              types.push_back(static_cast<int64_t>(result.scalar_type()));
            }
            return Tensors{results[0].detach(), results[1].detach(), at::tensor(types)};
          }};
}

const bool kRegistered = register_operator_cases("optimizers", [](Draw& draw) {
  switch (draw.integer(0, 6)) {
    case 0:
      return lists(draw);
    case 1:
      return more_lists(draw);
    case 2:
      return fused(draw);
    case 3:
      return fused_without_averages(draw);
    case 4:
      return autocast(draw);
    default:
      return training(draw);
  }
});

}  // namespace
}  // namespace meshrun
