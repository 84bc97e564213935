#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

using Call = std::function<at::Tensor(const Tensors&, int64_t)>;

struct ElementwiseLoss {
  std::string name;
  Call call;
  bool of_probabilities = false;
  bool with_weights = false;
};

const std::vector<ElementwiseLoss>& elementwise_losses() {
  static const auto* losses = new std::vector<ElementwiseLoss>{
      {"mse_loss", [](const Tensors& t, int64_t r) { return at::mse_loss(t[0], t[1], r); }},
      {"l1_loss", [](const Tensors& t, int64_t r) { return at::l1_loss(t[0], t[1], r); }},
      {"smooth_l1_loss",
       [](const Tensors& t, int64_t r) { return at::smooth_l1_loss(t[0], t[1], r, 0.7); }},
      {"huber_loss",
       [](const Tensors& t, int64_t r) { return at::huber_loss(t[0], t[1], r, 0.7); }},
      {"soft_margin_loss",
       [](const Tensors& t, int64_t r) { return at::soft_margin_loss(t[0], t[1].detach(), r); }},
      {"kl_div", [](const Tensors& t, int64_t r) { return at::kl_div(t[0], t[1], r, true); }},
      {"poisson_nll_loss",
       [](const Tensors& t, int64_t r) {
         return at::poisson_nll_loss(t[0], t[1], true, false, 1e-8, r);
       }},
      {"binary_cross_entropy",
       [](const Tensors& t, int64_t r) { return at::binary_cross_entropy(t[0], t[1], {}, r); },
       true},
      {"binary_cross_entropy, weights",
       [](const Tensors& t, int64_t r) {
         return at::binary_cross_entropy(t[0], t[1], t[2].detach(), r);
       },
       true, true},
      {"binary_cross_entropy_with_logits",
       [](const Tensors& t, int64_t r) {
         return at::binary_cross_entropy_with_logits(t[0], t[1], {}, {}, r);
       }},
      {"binary_cross_entropy_with_logits, weights",
       [](const Tensors& t, int64_t r) {
         return at::binary_cross_entropy_with_logits(t[0], t[1], t[2].detach(), t[2].detach(), r);
       },
       false, true},
  };
  return *losses;
}

OperatorCase elementwise(Draw& draw) {
  const ElementwiseLoss& loss = draw.one_of(elementwise_losses());
  const std::vector<int64_t> shape = {draw.extent(), draw.extent(), draw.integer(1, 4)};
  Tensors inputs = {draw.normal(shape), draw.normal(shape)};
  if (loss.of_probabilities) {
    for (at::Tensor& input : inputs) input = at::sigmoid(input);
  }
  if (loss.with_weights) inputs.push_back(draw.positive({shape[1], 1}));
  const int64_t reduction = draw.integer(0, 2);
  const Call call = loss.call;
  OperatorCase drawn{loss.name, inputs,
                     [=](const Tensors& t) { return Tensors{call(t, reduction)}; }};
  drawn.no_partial = loss.of_probabilities;
  if (draw.chance(0.2)) drawn.plain = {1};
  return drawn;
}

OperatorCase classes(Draw& draw) {
  const int64_t num_classes = draw.integer(1, 7);
  const int64_t reduction = draw.integer(0, 2);
  const bool is_vector = draw.chance(0.1);
  std::vector<int64_t> batch = {draw.extent()};
  while (batch.size() < 3 && draw.chance(0.5)) batch.push_back(draw.integer(1, 5));
  if (draw.chance(0.05)) batch[0] = 0;
  std::vector<int64_t> shape = batch;
  shape.insert(shape.begin() + 1, num_classes);
  if (is_vector) {
    batch = {};
    shape = {num_classes};
  }
  const double smoothing = draw.chance(0.4) ? 0.2 : 0;
  const at::Tensor scores = draw.normal(shape);
  const at::Tensor weight = draw.positive({num_classes});
  const bool weighted = draw.chance(0.5);
  OperatorCase drawn;
  drawn.no_partial = draw.chance(0.5);
  if (draw.chance(0.2)) drawn.plain = {2};
  if (draw.chance(0.3)) {
    const at::Tensor target = at::softmax(draw.normal(shape), is_vector ? 0 : 1);
    drawn.name = "cross_entropy of probabilities";
    drawn.inputs = {scores, target, weight};
    drawn.call = [=](const Tensors& t) {
      const auto chosen = weighted ? std::optional<at::Tensor>(t[2]) : std::nullopt;
      return Tensors{at::cross_entropy_loss(t[0], t[1], chosen, reduction, -100, smoothing) +
                     t[2].sum() * 0};
    };
    return drawn;
  }
  const auto chosen = [=](const at::Tensor& w) {
    return weighted ? std::optional<at::Tensor>(w.detach()) : std::nullopt;
  };
  at::Tensor target = draw.integers(batch, 0, num_classes - 1);
  if (batch.size() < 2 && draw.chance(0.2)) target = target.to(at::kByte);
  const int64_t ignored = draw.chance(0.5) ? draw.integer(0, num_classes) : -100;
  if (draw.chance(0.6)) {
    drawn.name = "cross_entropy";
    drawn.call = [=](const Tensors& t) {
      return Tensors{
          at::cross_entropy_loss(t[0], t[1], chosen(t[2]), reduction, ignored, smoothing) +
          t[2].sum() * 0};
    };
  } else {
    drawn.name = "nll_loss";
    drawn.call = [=](const Tensors& t) {
      return Tensors{at::nll_loss_nd(t[0], t[1], chosen(t[2]), reduction, ignored) +
                     t[2].sum() * 0};
    };
  }
  drawn.name += reduction == 0 ? ", none" : reduction == 1 ? ", mean" : ", sum";
  if (weighted) drawn.name += ", weights";
  drawn.inputs = {scores, target, weight};
  if (draw.chance(0.3)) drawn.plain.push_back(1);
  return drawn;
}

const bool kRegistered = register_operator_cases(
    "losses", [](Draw& draw) { return draw.chance(0.5) ? elementwise(draw) : classes(draw); });

}  // namespace
}  // namespace meshrun
