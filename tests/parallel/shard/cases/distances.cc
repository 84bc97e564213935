#include <limits>
#include <optional>

#include "ATen/ATen.h"
#include "tests/parallel/shard/operator_cases.h"
#include "tests/parallel/shard/raising_call.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

// Batch dimensions that broadcast: absent, 1, or as the other operand's.
Lengths draw_batch(Draw& draw, const Lengths& batch) {
  Lengths own = batch;
  for (int64_t& extent : own) {
    if (draw.chance(0.3)) extent = 1;
  }
  if (!own.empty() && draw.chance(0.3)) own.erase(own.begin());
  return own;
}

Lengths with_matrix(Lengths batch, int64_t rows, int64_t coordinates) {
  batch.insert(batch.end(), {rows, coordinates});
  return batch;
}

OperatorCase cdist_case(Draw& draw) {
  Lengths batch(static_cast<size_t>(draw.integer(0, 2)));
  for (int64_t& extent : batch) extent = draw.chance(0.05) ? 0 : draw.integer(1, 4);
  const double infinity = std::numeric_limits<double>::infinity();
  const double p = draw.one_of<double>({0, 0.5, 1, 1.5, 2, 2, 2, 3, infinity});
  const auto mode = draw.one_of<std::optional<int64_t>>({std::nullopt, 0, 1, 2});
  // LibTorch multiplies matrices from 26 rows on.
  const bool many = draw.chance(0.3);
  const int64_t rows1 = many ? draw.integer(26, 30) : draw.chance(0.05) ? 0 : draw.extent();
  const int64_t rows2 = draw.extent();
  const bool by_products = p == 2 && (mode == 1 || many);
  // Products lose the digits of small distances.
  int64_t coordinates = draw.chance(0.4) ? draw.integer(10, 40) : draw.integer(3, 9);
  // With one coordinate the terms of second derivatives cancel out, except those for p of 1.
  if (!by_products && draw.chance(0.3)) coordinates = draw.one_of<int64_t>({0, p == 1 ? 1 : 2});
  at::Tensor x1 = draw.normal(with_matrix(draw_batch(draw, batch), rows1, coordinates));
  at::Tensor x2 = draw.normal(with_matrix(draw_batch(draw, batch), rows2, coordinates));
  const bool has_equal = !by_products && draw.chance(0.3);
  if (has_equal && rows1 > 0 && x1.numel() > 0) {
    // Equal rows, and rows with one equal coordinate.
    const at::Tensor row = x1.view({-1, coordinates})[0];
    x2.select(-2, 0).copy_(row);
    x2.select(-2, rows2 - 1).select(-1, 0).copy_(row[0]);
  }
  OperatorCase drawn{"cdist", {x1, x2}, [=](const Tensors& t) {
                       const at::Tensor one = t[0].detach();
                       const at::Tensor other = t[1].detach();
                       const at::Tensor longer = at::cat({other, other}, -1);
                       return Tensors{
                           at::cdist(t[0], t[1], p, mode),
                           raises([&] { at::cdist(one, other, -1.0); }),
                           raises([&] { at::cdist(one, other, p, 3); }),
                           raises([&] { at::cdist(one.to(at::kLong), other, p); }),
                           raises([&] { at::cdist(one, other.to(at::kFloat), p); }),
                           raises([&] { at::cdist(one.to(at::kHalf), other.to(at::kHalf), 1.0); }),
                           raises([&] { at::cdist(one, longer, p); }),
                           raises([&] { at::cdist(one.flatten(), other, p); })};
                     }};
  // Sums of summands of equal numbers differ.
  drawn.no_partial = has_equal;
  if (draw.chance(0.2)) drawn.plain = {static_cast<size_t>(draw.integer(0, 1))};
  return drawn;
}

const bool kRegistered = register_operator_cases("distances", &cdist_case);

}  // namespace
}  // namespace meshrun
