#include <limits>
#include <optional>

#include "ATen/ATen.h"
#include "c10/core/InferenceMode.h"
#include "tests/parallel/shard/operator_cases.h"
#include "tests/parallel/shard/raising_call.h"
#include "torch/nn/functional/embedding.h"

namespace meshrun {
namespace {

constexpr int64_t kSum = 0;
constexpr int64_t kMax = 2;

// Often with equal elements, of which the first one in a bag is the largest.
at::Tensor draw_table(Draw& draw, int64_t rows) {
  const std::vector<int64_t> shape = {rows, draw.extent()};
  return draw.chance(0.5) ? draw.normal(shape) : draw.integers(shape, -2, 2).to(at::kDouble);
}

// The CPU kernel of some releases before 2.15 divides by the frequency of another row (pytorch
// 190063). Cases are drawn without gradients.
bool own_frequencies_divide() {
  const c10::InferenceMode no_inference(false);
  const at::AutoGradMode with_gradients(true);
  const at::Tensor table = at::ones({2, 1}).set_requires_grad(true);
  const at::Tensor elements = at::tensor({0, 0, 1}, at::kLong);
  const at::Tensor bags = std::get<0>(at::embedding_bag(table, elements, at::zeros({1}, at::kLong),
                                                        /*scale_grad_by_freq=*/true, kSum));
  bags.sum().backward();
  return table.grad()[1].item<double>() == 1;
}

at::Tensor draw_offsets(Draw& draw, int64_t bags, int64_t elements) {
  at::Tensor offsets = std::get<0>(draw.integers({bags}, 0, elements).sort());
  if (bags > 0) offsets[0].fill_(0);
  return offsets;
}

std::optional<at::Tensor> weights_if(bool has_weights, const at::Tensor& weights) {
  return has_weights ? std::optional(weights) : std::nullopt;
}

OperatorCase bags_case(Draw& draw) {
  const int64_t rows = draw.extent();
  const int64_t mode = draw.integer(0, 2);
  const int64_t bags = draw.chance(0.1) ? 0 : draw.extent();
  const int64_t count = bags == 0 ? 0 : draw.integer(0, 25);
  const bool has_last = draw.chance(0.3);
  static const bool frequencies_are_right = own_frequencies_divide();
  const bool by_frequency = draw.chance(0.3) && frequencies_are_right;
  const bool has_weights = mode == kSum && draw.chance(0.5);
  const std::optional<int64_t> padding =
      draw.chance(0.4) ? std::optional(draw.integer(-rows, rows - 1)) : std::nullopt;
  const double norm_type =
      draw.one_of<double>({0, 1, 2, 3, std::numeric_limits<double>::infinity()});
  const at::ScalarType type = draw.chance(0.3) ? at::kFloat : at::kDouble;
  const at::ScalarType index = draw.chance(0.3) ? at::kInt : at::kLong;
  at::Tensor offsets = draw_offsets(draw, bags, count);
  if (has_last) offsets = at::cat({offsets, at::full({1}, count, at::kLong)});
  if (draw.chance(0.7)) offsets = offsets.to(index);
  OperatorCase drawn{
      "embedding_bag",
      {draw.integers({count}, 0, rows - 1).to(index), offsets, draw.normal({count}).to(type),
       draw_table(draw, rows).to(type)},
      [=](const Tensors& t) {
        const auto weights = weights_if(has_weights, t[2]);
        const auto plain_weights = weights_if(has_weights, t[2].detach());
        const auto call = [&](bool scale, int64_t how) {
          return at::embedding_bag(t[3], t[0], t[1], scale, how, false, weights, has_last, padding);
        };
        const auto [values, bag_of, sizes, largest] = call(by_frequency && mode != kMax, mode);
        const at::Tensor unscaled = std::get<0>(
            at::_embedding_bag(t[3], t[0], t[1], false, mode, false, weights, has_last, rows / 2));
        const at::Tensor without_gradient = std::get<0>(at::_embedding_bag_forward_only(
            t[3].detach(), t[0], t[1], false, mode, false, plain_weights, has_last));
        Tensors results = {
            values,
            unscaled,
            without_gradient,
            std::get<0>(at::embedding_bag(t[3], t[0], t[1], false, mode, false, weights, has_last)),
            raises([&] {
              at::embedding_bag(t[3], t[0], t[1], false, 1, false, t[2], has_last, padding);
            }),
            raises([&] {
              at::embedding_bag(t[3], t[0], t[1], false, mode, false, weights, has_last, rows);
            }),
            raises([&] {
              at::embedding_bag(t[3], t[0].to(at::kDouble), t[1], false, mode, false, weights,
                                has_last, padding);
            })};
        // On a GPU LibTorch does not read the offsets.
        if (t[3].is_cpu()) {
          const auto with_offsets = [&](const at::Tensor& other) {
            at::embedding_bag(t[3], t[0], other, false, mode, false, weights, has_last, padding);
          };
          results.push_back(raises([&] { with_offsets(t[1] + 1); }));
          results.push_back(raises([&] { with_offsets(t[1] * 1000); }));
        }
        at::Tensor shorter = t[3].detach() * 1;
        at::embedding_renorm_(shorter, t[0], 1.5, norm_type);
        results.push_back(shorter);
        if (mode == kSum) return results;
        results.insert(results.end(), {bag_of, sizes});
        // LibTorch has 0 or -1 for an empty bag, by device.
        if (mode == kMax) results.push_back(largest.masked_fill(sizes.eq(0).unsqueeze(1), 0));
        return results;
      }};
  for (const size_t input : {0, 1, 2}) {
    if (draw.chance(0.3)) drawn.plain.push_back(input);
  }
  if (!has_weights && draw.chance(0.1)) drawn.plain.push_back(3);
  return drawn;
}

// As torch::nn::EmbeddingBag calls it: rows of a matrix are bags.
OperatorCase rows_of_indices(Draw& draw) {
  namespace F = torch::nn::functional;
  const int64_t rows = draw.extent();
  const int64_t mode = draw.integer(0, 2);
  const bool has_weights = mode == kSum && draw.chance(0.5);
  F::EmbeddingBagFuncOptions options;
  if (mode == kSum) {
    options.mode(torch::kSum);
  } else if (mode == kMax) {
    options.mode(torch::kMax);
  } else {
    options.mode(torch::kMean).scale_grad_by_freq(draw.chance(0.3) && own_frequencies_divide());
  }
  if (draw.chance(0.3)) options.padding_idx(draw.integer(0, rows - 1));
  // Rounding of norms decides which of equal elements is the largest.
  if (mode != kMax && draw.chance(0.3)) options.max_norm(1.5).norm_type(draw.integer(1, 3));
  const std::vector<int64_t> shape = {draw.extent(), draw.extent()};
  OperatorCase drawn{
      "nn embedding_bag",
      {draw.integers(shape, 0, rows - 1), draw.normal(shape), draw_table(draw, rows)},
      [=](const Tensors& t) {
        F::EmbeddingBagFuncOptions own = options;
        if (has_weights) own.per_sample_weights(t[1]);
        return Tensors{F::embedding_bag(t[0], t[2], own)};
      }};
  for (const size_t input : {0, 1}) {
    if (draw.chance(0.3)) drawn.plain.push_back(input);
  }
  return drawn;
}

const bool kRegistered = register_operator_cases("embedding bags", [](Draw& draw) {
  return draw.chance(0.7) ? bags_case(draw) : rows_of_indices(draw);
});

}  // namespace
}  // namespace meshrun
