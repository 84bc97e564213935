// Tensors that ranks hold in pieces of one cut and need in pieces of another.
#include "parallel/checkpoint/region_exchange.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "parallel/checkpoint/stored_values.h"
#include "tests/parallel/support/rank_processes.h"
#include "tests/parallel/support/rank_world.h"

namespace meshrun::detail {
namespace {

using at::Tensor;
using Random = std::mt19937;

int64_t drawn(Random& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}

// Which elements each rank has: all, flat slices, or pieces along a dimension, uneven and perhaps
// empty, in any order, the same ones on several ranks.
std::vector<Region> draw_cut(Random& random, const std::vector<int64_t>& shape, int ranks) {
  const Region whole = Region::whole(shape);
  const int64_t kind = drawn(random, 0, 3);
  if (kind == 0) return std::vector<Region>(static_cast<size_t>(ranks), whole);
  const bool is_flat = kind == 1;
  const auto dim = static_cast<size_t>(drawn(random, 0, static_cast<int64_t>(shape.size()) - 1));
  const int64_t extent = is_flat ? whole.elements() : shape[dim];
  const int64_t pieces = drawn(random, 1, ranks);
  std::vector<int64_t> borders = {0, extent};
  for (int64_t i = 1; i < pieces; ++i) borders.push_back(drawn(random, 0, extent));
  std::ranges::sort(borders);
  std::vector<Region> cut;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto piece = static_cast<size_t>(rank) % static_cast<size_t>(pieces);
    const int64_t begin = borders[piece], size = borders[piece + 1] - begin;
    if (is_flat) {
      cut.push_back(Region::flat(extent, begin, size));
    } else {
      cut.push_back(whole);
      cut.back().begin[dim] = begin;
      cut.back().size[dim] = size;
    }
  }
  std::ranges::shuffle(cut, random);
  return cut;
}

// The elements of a whole tensor, in a tensor of its own.
Tensor part_of(const Tensor& whole, const Region& region) {
  Tensor part = whole.view(region.shape);
  for (size_t d = 0; d < region.shape.size(); ++d) {
    part = part.narrow(static_cast<int64_t>(d), region.begin[d], region.size[d]);
  }
  return part.clone();
}

struct Case {
  std::string name;
  Tensor whole;
  std::vector<Region> held;
  std::vector<Region> needed;
  bool is_read = false;     // by the callback; else it lies in memory
  bool is_strided = false;  // what is filled is not in this order
};

Case draw_case(Random& random, int ranks, size_t number) {
  Case result;
  result.name = "tensor " + std::to_string(number);
  // Some runs are longer than what is packed, and some cases longer than a round.
  const int64_t rows =
      drawn(random, 0, 3) == 0 ? drawn(random, 20'000, 60'000) : drawn(random, 0, 40);
  const std::vector<int64_t> shape = {rows, drawn(random, 1, 3), drawn(random, 1, 8)};
  const at::ScalarType types[] = {at::kByte, at::kHalf, at::kFloat, at::kComplexFloat};
  const auto type = types[drawn(random, 0, 3)];
  at::Generator generator = at::detail::createCPUGenerator(number);
  result.whole = at::randint(256, shape, generator).to(type);
  result.held = draw_cut(random, shape, ranks);
  result.needed = draw_cut(random, shape, ranks);
  result.is_read = drawn(random, 0, 1) == 1;
  result.is_strided = drawn(random, 0, 3) == 0;
  return result;
}

const bool kFills = register_rank_function("fills_from_regions", [] {
  const RankWorld world;
  const auto own = static_cast<size_t>(world.rank());
  for (uint32_t seed = 0; seed < 12; ++seed) {
    Random random(seed);  // alike on all ranks
    std::vector<Case> cases;
    const int64_t count = drawn(random, 0, 12);
    for (int64_t i = 0; i < count; ++i) {
      cases.push_back(draw_case(random, world.size(), cases.size()));
    }
    std::vector<HeldRegion> held;
    std::vector<Tensor> parts;
    std::vector<Target> targets;
    std::vector<Tensor> filled;
    for (const Case& each : cases) {
      Region region = each.held[own];
      parts.push_back(part_of(each.whole, region));
      held.push_back({kModel, each.name, region,
                      each.is_read ? Tensor() : StoredValues(parts.back()).bytes()});
      const Region& needed = each.needed[own];
      Tensor target = at::zeros(needed.size, each.whole.options());
      if (each.is_strided) target = target.transpose(0, -1).contiguous().transpose(0, -1);
      auto cut = std::make_shared<Cut>();
      cut->group = world.group();
      cut->by_rank = each.needed;
      targets.emplace_back(kModel, each.name, stored_info(each.whole), target, cut);
      filled.push_back(target);
    }
    fill_from_regions(world.group(), at::kCPU, held, targets,
                      [&](size_t index, uint64_t from, std::span<char> to) {
                        EXPECT_FALSE(held[index].bytes.defined());
                        std::memcpy(to.data(),
                                    static_cast<const char*>(parts[index].const_data_ptr()) + from,
                                    to.size());
                      });
    for (size_t i = 0; i < cases.size(); ++i) {
      targets[i].finish();
      EXPECT_TRUE(at::equal(filled[i], part_of(cases[i].whole, cases[i].needed[own])))
          << "seed " << seed << ", " << cases[i].name << " on rank " << own;
    }
  }
  // Elements that nobody has are the same error on all ranks.
  const Region half = Region::flat(8, 0, 4);
  Tensor target = at::zeros({8});
  std::vector<Target> targets;
  targets.emplace_back(kModel, "w", stored_info(target), target, nullptr);
  try {
    fill_from_regions(world.group(), at::kCPU, {{kModel, "w", half}}, targets, {});
    ADD_FAILURE() << "half of a tensor is enough";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "no rank has all of w");
  }
});

TEST(RegionExchangeTest, AnyCutIsFilledFromAnyOther) {
  for (const int ranks : {1, 2, 3, 4})
    expect_success(run_ranks("fills_from_regions", env_ranks(ranks)));
}

}  // namespace
}  // namespace meshrun::detail
