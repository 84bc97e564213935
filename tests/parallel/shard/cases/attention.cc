#include <limits>
#include <optional>

#include "ATen/ATen.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

const bool kRegistered = register_operator_cases("attention", [](Draw& draw) {
  const int64_t queries = draw.extent();
  const int64_t keys = draw.chance(0.5) ? queries : draw.extent();
  const int64_t extent = draw.integer(1, 4);
  const int64_t value_extent = draw.chance(0.7) ? extent : draw.integer(1, 4);
  const bool enable_gqa = draw.chance(0.25);
  const bool broadcasts = draw.chance(0.1);
  std::vector<int64_t> batch = {draw.integer(1, 4), draw.integer(1, 5)};
  if (!enable_gqa && draw.chance(0.2)) batch.pop_back();
  if (!enable_gqa && draw.chance(0.1)) batch.push_back(2);
  std::vector<int64_t> key_batch = batch;
  if (enable_gqa) batch.back() *= draw.integer(1, 3);
  if (broadcasts && !enable_gqa) key_batch[0] = 1;
  const auto shape = [](std::vector<int64_t> b, int64_t rows, int64_t columns) {
    b.insert(b.end(), {rows, columns});
    return b;
  };
  OperatorCase drawn;
  drawn.inputs = {draw.normal(shape(batch, queries, extent)),
                  draw.normal(shape(key_batch, keys, extent)),
                  draw.normal(shape(key_batch, keys, value_extent))};
  const int64_t mask = draw.integer(0, 3);
  const bool is_causal = mask == 0 && draw.chance(0.5);
  if (mask == 1) drawn.inputs.push_back(draw.integers({queries, keys}, 0, 2));
  if (mask == 2) {
    std::vector<int64_t> whole = shape(batch, queries, keys);
    for (int64_t& size : whole) {
      if (draw.chance(0.3)) size = 1;
    }
    drawn.inputs.push_back(draw.normal(whole));
  }
  const std::optional<double> scale = draw.chance(0.3) ? std::optional<double>(0.4) : std::nullopt;
  drawn.name = "scaled_dot_product_attention";
  drawn.no_partial = draw.chance(0.7);
  if (mask == 1 && draw.chance(0.5)) drawn.plain = {3};
  drawn.call = [=](const Tensors& t) {
    std::optional<at::Tensor> used;
    if (mask == 1) used = t[3] > 0;
    if (mask == 2) used = t[3];
    return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], used, 0.0, is_causal, scale,
                                                    enable_gqa)};
  };
  return drawn;
});

}  // namespace
}  // namespace meshrun
