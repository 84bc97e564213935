#include <algorithm>
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
  const bool broadcasts = draw.chance(0.35);
  std::vector<int64_t> batch = {draw.integer(1, 4), draw.integer(1, 5)};
  if (!enable_gqa && draw.chance(0.2)) batch.pop_back();
  if (!enable_gqa && draw.chance(0.1)) batch.push_back(2);
  std::vector<int64_t> key_batch = batch;
  if (enable_gqa) batch.back() *= draw.integer(1, 3);
  std::vector<int64_t> value_batch = key_batch;
  std::vector<int64_t> query_batch = batch;
  if (broadcasts) {
    // One for all of the others: of keys and values, of one of them, of queries.
    const size_t dims = enable_gqa ? batch.size() - 1 : batch.size();
    for (size_t dim = 0; dim < dims; ++dim) {
      const int64_t which = draw.integer(0, 5);
      if (which <= 2) key_batch[dim] = 1;
      if (which <= 1 || which == 3) value_batch[dim] = 1;
      if (which == 4) query_batch[dim] = 1;
    }
    const auto drop_ones = [&](std::vector<int64_t>& sizes) {
      const size_t least = enable_gqa ? 1 : 0;
      while (sizes.size() > least && sizes[0] == 1 && draw.chance(0.3)) sizes.erase(sizes.begin());
    };
    drop_ones(key_batch);
    drop_ones(value_batch);
    drop_ones(query_batch);
  }
  const auto shape = [](std::vector<int64_t> b, int64_t rows, int64_t columns) {
    b.insert(b.end(), {rows, columns});
    return b;
  };
  OperatorCase drawn;
  drawn.inputs = {draw.normal(shape(query_batch, queries, extent)),
                  draw.normal(shape(key_batch, keys, extent)),
                  draw.normal(shape(value_batch, keys, value_extent))};
  const int64_t mask = draw.integer(0, 3);
  const bool is_causal = mask == 0 && draw.chance(0.5);
  if (mask == 1) drawn.inputs.push_back(draw.integers({queries, keys}, 0, 2));
  if (mask == 2) {
    std::vector<int64_t> whole = shape(batch, queries, keys);
    for (int64_t& size : whole) {
      if (draw.chance(0.3)) size = 1;
    }
    // LibTorch refuses a mask with more dimensions than the scores, which are ones here.
    const size_t dims = std::max(query_batch.size(), key_batch.size()) + 2;
    if (whole.size() > dims) whole.erase(whole.begin(), whole.end() - static_cast<int64_t>(dims));
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
