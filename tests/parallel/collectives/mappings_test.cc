#include "parallel/collectives/mappings.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/base/split.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/csrc/autograd/autograd.h"

namespace meshrun {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// Equal on all ranks.
Tensor values(at::IntArrayRef shape, int seed = 1) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return ((at::arange(count, at::kDouble) * 7 + seed) % 11 - 5).view(shape);
}

Tensor leaf(const Tensor& tensor) { return tensor.detach().clone().requires_grad_(); }

Tensor gradient(const Tensor& loss, const Tensor& of, bool create_graph = false) {
  return torch::autograd::grad({loss}, {of}, {}, create_graph, create_graph)[0];
}

const bool kReduceFrom = register_rank_function("reduce_from", [] {
  const JoinedWorld world;
  const int p = world.size;
  const Tensor x = leaf(values({3, 4}));
  // Closed form: P * 0.5 * x, gradient 0.5.
  const Tensor half = 0.5 * x;
  const Tensor before = half.detach().clone();
  const Tensor y = reduce_from_parallel_region(half);
  EXPECT_TRUE(at::equal(half, before));
  EXPECT_TRUE(at::equal(y, p * 0.5 * x));
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full_like(x, 0.5)));

  // Second derivatives, in the convention that what all ranks hold alike has one cotangent: of
  // sum_r x_r^3 by x_r.
  const Tensor z = leaf(values({5}, 2 + world.rank));
  const Tensor first = gradient(reduce_from_parallel_region(z.pow(3)).sum(), z, true);
  EXPECT_TRUE(at::equal(first, 3 * z * z));
  EXPECT_TRUE(at::equal(gradient(first.sum(), z), 6 * z));

  // Strided, integral, bfloat16 in float32 (256 + 1 is 256 in bfloat16), none of them changed.
  const Tensor strided = values({3, 4}).t();
  EXPECT_TRUE(at::equal(reduce_from_parallel_region(strided), strided * p));
  EXPECT_TRUE(at::equal(strided, values({3, 4}).t()));
  EXPECT_EQ(reduce_from_parallel_region(at::full({1}, 3, at::kLong)).item<int64_t>(), 3 * p);
  const Tensor step = at::full({1}, world.rank == 0 ? 256 : 1, at::kBFloat16);
  EXPECT_EQ(reduce_from_parallel_region(step).item<float>(),
            at::full({1}, 255 + p, at::kBFloat16).item<float>());
  EXPECT_EQ(step.item<float>(), world.rank == 0 ? 256 : 1);
});

TEST(MappingsTest, ReduceFromSumsAndItsGradientIsTheCotangent) { run_in_worlds("reduce_from"); }

const bool kCopyTo = register_rank_function("copy_to", [] {
  const JoinedWorld world;
  const int p = world.size;
  const Tensor x = leaf(values({3, 4}));
  const Tensor g = values({3, 4}, 3);
  EXPECT_TRUE(at::equal(copy_to_parallel_region(x), x));
  // Closed form: P * g.
  EXPECT_TRUE(at::equal(gradient((copy_to_parallel_region(x) * g).sum(), x), g * p));
  // A sibling branch gets the cotangent as it was: the engine's buffer is not summed in place.
  const Tensor shared = x * 1;
  const Tensor y = copy_to_parallel_region(shared) + shared;
  const Tensors cotangents = {g.clone()};
  const Tensor dx = torch::autograd::grad({y}, {x}, cotangents)[0];
  EXPECT_TRUE(at::equal(dx, g * p + g));
  EXPECT_TRUE(at::equal(cotangents[0], g));

  // Every rank uses the copy its own way: f = sum_r w_r x^3.
  const double total = p * (p + 1) / 2.0;
  const Tensor copy = copy_to_parallel_region(x);
  const Tensor first = gradient((copy.pow(3) * (world.rank + 1)).sum(), x, true);
  EXPECT_TRUE(at::equal(first, 3 * x * x * total));
  EXPECT_TRUE(at::equal(gradient(first.sum(), x), 6 * x * total));
});

TEST(MappingsTest, CopyToSumsCotangentsWithoutTouchingThem) { run_in_worlds("copy_to"); }

const bool kScatterAndGather = register_rank_function("scatter_and_gather", [] {
  const JoinedWorld world;
  const auto rank = static_cast<size_t>(world.rank);
  const std::vector<std::pair<int64_t, int64_t>> cases = {{7, 0}, {7, -1}, {3, 1}, {8, -3}};
  for (const auto& [extent, dim] : cases) {
    std::vector<int64_t> shape = {2, 3, 2};
    const auto place = static_cast<size_t>(dim < 0 ? dim + 3 : dim);
    shape[place] = extent;
    const std::vector<int64_t> extents = compute_split_shapes(extent, world.size);
    const SplitRange range = split_range(extent, world.size, world.rank);
    const Tensor x = leaf(values(shape));
    const Tensor weights = values(shape, 4);
    const Tensor piece = scatter_to_parallel_region(x, dim);
    EXPECT_TRUE(at::equal(piece, x.narrow(dim, range.begin, range.size())));
    EXPECT_FALSE(piece.is_alias_of(x));
    // Every rank weighs its piece: the gradient is of the whole.
    const Tensor own = weights.narrow(dim, range.begin, range.size());
    EXPECT_TRUE(at::equal(gradient((piece * own).sum(), x), weights));
    const Tensor first = gradient((scatter_to_parallel_region(x, dim).pow(3) * own).sum(), x, true);
    EXPECT_TRUE(at::equal(first, 3 * x * x * weights));
    EXPECT_TRUE(at::equal(gradient(first.sum(), x), 6 * x * weights));

    const Tensor gathered = gather_from_parallel_region(piece, dim, extents);
    EXPECT_TRUE(at::equal(gathered, x));
    EXPECT_EQ(extents[rank], piece.size(dim));
  }
});

TEST(MappingsTest, ScatterToTakesThisRanksPieceAndGathersItsCotangents) {
  run_in_worlds("scatter_and_gather");
}

const bool kGatherFrom = register_rank_function("gather_from", [] {
  const JoinedWorld world;
  // Pieces of r + 1, and an empty one: not those of compute_split_shapes.
  std::vector<int64_t> extents;
  Sizes::Shape shape = {2, 0, 3};
  std::vector<Sizes::Shape> shapes;
  int64_t begin = 0, total = 0;
  for (int r = 0; r < world.size; ++r) {
    extents.push_back(r == 1 ? 0 : r + 1);
    shape[1] = extents.back();
    shapes.push_back(shape);
    if (r < world.rank) begin += extents.back();
    total += extents.back();
  }
  const int64_t own = extents[static_cast<size_t>(world.rank)];
  const Tensor whole = values({2, total, 3});
  const Tensor weights = values({2, total, 3}, 5);
  for (const Sizes& sizes : {Sizes(extents), Sizes(shapes)}) {
    const Tensor x = leaf(whole.narrow(1, begin, own));
    const Tensor y = gather_from_parallel_region(x, -2, sizes);
    EXPECT_TRUE(at::equal(y, whole));
    // Its own piece of the cotangent, nothing summed.
    EXPECT_TRUE(at::equal(gradient((y * weights).sum(), x), weights.narrow(1, begin, own)));
    const Tensor first =
        gradient((gather_from_parallel_region(x, 1, sizes).pow(3) * weights).sum(), x, true);
    const Tensor mine = weights.narrow(1, begin, own);
    EXPECT_TRUE(at::equal(first, 3 * x * x * mine));
    EXPECT_TRUE(at::equal(gradient(first.sum(), x), 6 * x * mine));
  }
});

TEST(MappingsTest, GatherFromTakesPiecesOfAnySizeAndGivesEachItsCotangent) {
  run_in_worlds("gather_from");
}

const bool kSubgroups = register_rank_function("mappings_in_subgroups", [] {
  const JoinedWorld world;
  DistributedManager::create_process_subgroup("pair", 2);
  DistributedManager::create_orthogonal_process_group("across", "pair");
  const Tensor own = at::full({1}, world.rank, at::kFloat);
  const double pair = world.rank / 2 * 2 * 2 + 1;
  EXPECT_EQ(reduce_from_parallel_region(own, "pair").item<double>(), pair);
  EXPECT_EQ(reduce_from_parallel_region(own, world.manager.group("across")).item<double>(),
            2 * (world.rank % 2) + 2);
  EXPECT_TRUE(at::equal(gather_from_parallel_region(own, 0, {}, "across"),
                        at::tensor({world.rank % 2, world.rank % 2 + 2}).to(at::kFloat)));
});

TEST(MappingsTest, WorkInSubgroups) { run_in_worlds("mappings_in_subgroups", {4}, {"ucx"}); }

const bool kWrong = register_rank_function("mappings_wrong", [] {
  const JoinedWorld world;
  const bool odd = world.rank == 1;
  const Tensor x = at::ones({2, 2});
  expect_error_on_all_ranks([&] { reduce_from_parallel_region(odd ? Tensor() : x); }, "undefined");
  expect_error_on_all_ranks([&] { reduce_from_parallel_region(odd ? x.to(at::kInt) : x); },
                            "disagree");
  expect_error_on_all_ranks([&] { reduce_from_parallel_region(odd ? at::ones({3}) : x); },
                            "disagree");
  expect_error_on_all_ranks([&] { gather_from_parallel_region(x, odd ? 2 : 0); }, "dim");
  expect_error_on_all_ranks([&] { gather_from_parallel_region(odd ? Tensor() : x, 0); },
                            "undefined");
  expect_error_on_all_ranks(
      [&] {
        std::vector<int64_t> shapes(static_cast<size_t>(world.size), 2);
        if (odd) shapes[0] = 3;
        gather_from_parallel_region(x, 0, shapes);
      },
      "disagree");
  // Without communication: here alone.
  EXPECT_THROW(scatter_to_parallel_region(x, 2), c10::IndexError);
  EXPECT_THROW(scatter_to_parallel_region(at::ones({}), 0), c10::IndexError);
  EXPECT_THROW(scatter_to_parallel_region(Tensor(), 0), c10::ValueError);
  EXPECT_THROW(copy_to_parallel_region(Tensor()), c10::ValueError);
  EXPECT_TRUE(at::equal(reduce_from_parallel_region(x), x * world.size));
});

TEST(MappingsTest, AWrongCallIsAnErrorOnAllRanks) {
  run_in_worlds("mappings_wrong", {2, 3}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
