// The v-collectives between real ranks: forward and backward against the unsharded computation,
// which every rank does alone.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include "parallel/base/collective_errors.h"
#include "parallel/collectives/collectives.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

using at::Tensor;
using std::vector;
using torch::autograd::grad;

// Equal on all ranks, and small integers, whose sums are exact.
Tensor numbers(at::IntArrayRef shape, int64_t seed) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return at::arange(count, at::kDouble)
      .mul(7 + seed)
      .add(seed)
      .remainder(23)
      .sub(11)
      .reshape(shape);
}

vector<int64_t> uneven(int world) {
  vector<int64_t> sizes;
  for (int r = 0; r < world; ++r) sizes.push_back((r * 2 + 3) % 5);  // 3, 0, 2, 4
  return sizes;
}

int64_t sum(const vector<int64_t>& sizes) {
  int64_t total = 0;
  for (const int64_t size : sizes) total += size;
  return total;
}

Tensor piece(const Tensor& whole, const vector<int64_t>& sizes, int64_t dim, int rank) {
  return whole.split_with_sizes(sizes, dim)[static_cast<size_t>(rank)];
}

Tensor leaf(const Tensor& values) { return values.clone().requires_grad_(); }

vector<int64_t> shape_with(int64_t dim, int64_t extent) {
  vector<int64_t> shape = {2, 3, 4};
  shape[static_cast<size_t>(dim < 0 ? dim + 3 : dim)] = extent;
  return shape;
}

const bool kGathers = register_rank_function("v_gathers", [] {
  const JoinedWorld world;
  const vector<int64_t> sizes = uneven(world.size);
  for (const int64_t dim : {0, 1, -1}) {
    const Tensor whole = numbers(shape_with(dim, sum(sizes)), 1);
    const Tensor x = leaf(piece(whole, sizes, dim, world.rank));
    // Ranks have cotangents of their own.
    const auto cotangent = [&](int rank) { return numbers(whole.sizes(), 10 + rank); };
    Tensor all = at::zeros_like(whole);
    for (int r = 0; r < world.size; ++r) all += cotangent(r);

    const Tensor y = all_gather_v(x, sizes, dim);
    EXPECT_TRUE(at::equal(y, whole));
    EXPECT_TRUE(
        at::equal(grad({y}, {x}, {cotangent(world.rank)})[0], piece(all, sizes, dim, world.rank)));

    const Tensor z = leaf(cotangent(world.rank));
    const Tensor reduced = reduce_scatter_v(z, sizes, dim);
    EXPECT_TRUE(at::equal(reduced, piece(all, sizes, dim, world.rank)));
    EXPECT_TRUE(at::equal(grad({reduced}, {z}, {x.detach()})[0], whole));

    for (int root = 0; root < world.size; ++root) {
      const bool is_root = root == world.rank;
      const Tensor gathered = gather_v(x, sizes, dim, root);
      EXPECT_TRUE(at::equal(gathered, is_root ? whole : whole.narrow(dim, 0, 0)));
      EXPECT_TRUE(
          at::equal(grad({gathered}, {x}, {is_root ? cotangent(root) : gathered.detach()})[0],
                    piece(cotangent(root), sizes, dim, world.rank)));

      const Tensor source = leaf(is_root ? whole : whole.narrow(dim, 0, sum(sizes) > 0 ? 1 : 0));
      const Tensor scattered = scatter_v(source, sizes, dim, root);
      EXPECT_TRUE(at::equal(scattered, x));
      EXPECT_TRUE(at::equal(grad({scattered}, {source}, {piece(all, sizes, dim, world.rank)})[0],
                            is_root ? all : at::zeros_like(source)));
    }
  }
});
TEST(VCollectivesTest, GathersAndScattersWithTheirGradients) { run_in_worlds("v_gathers"); }

const bool kWithoutSizes = register_rank_function("v_without_sizes", [] {
  const JoinedWorld world;
  const vector<int64_t> sizes(static_cast<size_t>(world.size), 2);
  const Tensor whole = numbers(shape_with(1, 2 * world.size), 3);
  const Tensor own = piece(whole, sizes, 1, world.rank);
  EXPECT_TRUE(at::equal(all_gather_v(own, {}, 1), whole));
  EXPECT_TRUE(at::equal(reduce_scatter_v(whole, {}, 1), own * world.size));
  const int last = world.size - 1;
  const Tensor source = world.rank == last ? whole : at::empty({2, 0, 4}, at::kDouble);
  EXPECT_TRUE(at::equal(scatter_v(source, {}, 1, last), own));
  expect_error_on_all_ranks([&] { scatter_v(source, {}, 5, last); }, "dim is 5");
  vector<Sizes::Shape> shapes(static_cast<size_t>(world.size), {2, 2, 4});
  EXPECT_TRUE(at::equal(all_gather_v(own, shapes, 1), whole));
});
TEST(VCollectivesTest, SizesMayBeAbsentOrFullShapes) { run_in_worlds("v_without_sizes"); }

const bool kTransposes = register_rank_function("v_transposes", [] {
  const JoinedWorld world;
  const vector<int64_t> rows = compute_split_shapes(7, world.size);
  const vector<int64_t> columns = uneven(world.size);
  const Tensor whole = numbers({2, 7, 3, sum(columns)}, 5);
  const Tensor x = leaf(piece(whole, columns, 3, world.rank));
  const Tensor y = all_to_all_v(x, rows, columns, 1, 3);
  EXPECT_TRUE(at::equal(y, piece(whole, rows, 1, world.rank)));
  EXPECT_TRUE(at::equal(grad({y.square().sum()}, {x})[0], 2 * x));
  // Several at once, waited for in the other order; one is dropped, which Gloo's sends do not
  // allow.
  AsyncTensor there = all_to_all_v_async(x, rows, columns, 1, 3);
  if (world.manager.backend() == "ucx") all_to_all_v_async(x * 3, rows, columns, 1, 3);
  AsyncTensor back = all_to_all_v_async(y.detach(), columns, rows, 3, 1);
  EXPECT_TRUE(at::equal(back.wait(), x));
  EXPECT_FALSE(back.wait().requires_grad());
  EXPECT_TRUE(at::equal(there.wait(), y));
  EXPECT_TRUE(there.is_completed());
  EXPECT_TRUE(at::equal(grad({there.wait().pow(3).sum()}, {x})[0], 3 * x.square()));
});
TEST(VCollectivesTest, AllToAllAlongTwoDimsIsATranspose) { run_in_worlds("v_transposes"); }

// Rank i sends to rank j the slices (i + j + k) mod its extent, i + 2 j mod 3 of them.
struct Halo {
  Halo(int rank, int size) {
    for (int i = 0; i < size; ++i) {
      sizes.emplace_back();
      for (int j = 0; j < size; ++j) sizes.back().push_back((i + 2 * j) % 3);
    }
    for (int i = 0; i < size; ++i) {
      all.emplace_back();
      for (int j = 0; j < size; ++j) {
        const int64_t count = sizes[static_cast<size_t>(i)][static_cast<size_t>(j)];
        all.back().push_back(at::arange(count, at::kLong).add(i + j).remainder(extent(i)));
      }
    }
    indices = all[static_cast<size_t>(rank)];
  }
  static int64_t extent(int rank) { return 2 + rank % 2; }

  vector<vector<int64_t>> sizes;
  vector<vector<Tensor>> all;
  vector<Tensor> indices;
};

const bool kIndexed = register_rank_function("v_indexed", [] {
  const JoinedWorld world;
  const Halo halo(world.rank, world.size);
  for (const int64_t dim : {0, 1, -1}) {
    // The unsharded computation: all ranks' tensors, and all that goes to this one.
    const auto result_of = [&](const vector<Tensor>& inputs, int to) {
      vector<Tensor> parts;
      for (int from = 0; from < world.size; ++from) {
        parts.push_back(inputs[static_cast<size_t>(from)].index_select(
            dim, halo.all[static_cast<size_t>(from)][static_cast<size_t>(to)]));
      }
      return at::cat(parts, dim);
    };
    vector<Tensor> inputs, outputs, cotangents;
    for (int r = 0; r < world.size; ++r) {
      inputs.push_back(leaf(numbers(shape_with(dim, Halo::extent(r)), 20 + r)));
    }
    for (int r = 0; r < world.size; ++r) {
      outputs.push_back(result_of(inputs, r));
      cotangents.push_back(numbers(outputs.back().sizes(), 30 + r));
    }
    const vector<Tensor> expected = grad(outputs, inputs, cotangents, true);
    const auto self = static_cast<size_t>(world.rank);

    const Tensor x = leaf(inputs[self].detach());
    const Tensor y = indexed_all_to_all_v(x, halo.indices, halo.sizes, true, dim);
    EXPECT_TRUE(at::equal(y, outputs[self]));
    EXPECT_TRUE(at::equal(grad({y}, {x}, {cotangents[self]})[0], expected[self]));

    const IndexedAllToAllPlan plan(halo.indices, halo.sizes, Halo::extent(world.rank));
    AsyncTensor pending = indexed_all_to_all_v_async(x, plan, true, dim);
    EXPECT_TRUE(at::equal(pending.wait(), outputs[self]));
    EXPECT_TRUE(
        at::equal(indexed_all_to_all_v_wrapper_bwd(cotangents[self], halo.indices, halo.sizes,
                                                   Halo::extent(world.rank), true, dim),
                  expected[self]));
    // Strided on the way back: a cotangent of a sum has strides of 0.
    EXPECT_TRUE(at::equal(grad({indexed_all_to_all_v(x, plan, true, dim).sum()}, {x})[0],
                          grad({result_of(inputs, 0).sum() * 0 +
                                [&] {
                                  Tensor total = at::zeros({}, at::kDouble);
                                  for (const Tensor& output : outputs) total = total + output.sum();
                                  return total;
                                }()},
                               {inputs[self]})[0]));
  }
});
TEST(VCollectivesTest, IndexedExchangeHonoursDimAndAddsUpBackward) { run_in_worlds("v_indexed"); }

const bool kHalves = register_rank_function("v_halves", [] {
  const JoinedWorld world;
  // 256 + 1 + 1 ...: in bfloat16 each sum is 256 again, in float32 the last rounding sees all ones.
  const Tensor whole =
      at::full({2 * world.size}, world.rank == 0 ? 256 : 1, at::kDouble).to(at::kBFloat16);
  const double wide = reduce_scatter_v(whole).select(0, 0).item<double>();
  const double native = reduce_scatter_v(whole, {}, 0, false).select(0, 0).item<double>();
  EXPECT_EQ(wide, at::full({}, 255. + world.size).to(at::kBFloat16).item<double>());
  EXPECT_EQ(native, 256);
});
TEST(VCollectivesTest, HalvesAddInFloat32UnlessToldOtherwise) {
  run_in_worlds("v_halves", {1, 2, 3, 4}, {"ucx"});
}

const bool kWrong = register_rank_function("v_wrong_calls", [] {
  const JoinedWorld world;
  const bool first = world.rank == 0;
  const Tensor x = at::ones({2, 3});
  const vector<int64_t> sizes(static_cast<size_t>(world.size), 2);
  expect_error_on_all_ranks([&] { all_gather_v(x, first ? Sizes{} : sizes, first ? 2 : 0); },
                            "dim is 2");
  expect_error_on_all_ranks([&] { gather_v(x, sizes, 0, first ? world.size : 0); }, "dst is");
  expect_error_on_all_ranks([&] { all_gather_v(x.clone().requires_grad_(first), sizes); }, "");
  const Halo halo(world.rank, world.size);
  auto table = halo.sizes;
  if (first) table.back().pop_back();
  const Tensor y = at::ones({Halo::extent(world.rank), 3});
  expect_error_on_all_ranks([&] { indexed_all_to_all_v(y, halo.indices, table); }, "sizes[");
  // Where the tables differ, and ranks 0 and 1 send and receive alike by both.
  table = halo.sizes;
  if (first) ++table.back().back();
  for (const int64_t sent : {sum(halo.sizes.back()) + 1, sum(halo.sizes.back())}) {
    expect_error_on_all_ranks([&] { indexed_all_to_all_v(y, halo.indices, table); },
                              ", " + std::to_string(sent) + "]), sending [");
  }
  expect_error_on_all_ranks(
      [&] { indexed_all_to_all_v(y.clone().requires_grad_(first), halo.indices, halo.sizes); },
      "with gradient");
  // Nothing has moved, and the group can be used.
  EXPECT_EQ(all_gather_v(x, sizes).size(0), 2 * world.size);
});
TEST(VCollectivesTest, AWrongCallOnOneRankIsAnErrorOnAll) {
  run_in_worlds("v_wrong_calls", {2, 3}, {"ucx"});
}

// Loss on rank 0 alone, second derivatives through it, the others tied.
const bool kTied = register_rank_function("v_tied", [] {
  const JoinedWorld world;
  const Tensor x = leaf(numbers({2, 3}, world.rank));
  const Tensor y = gather_v(x, {}, 0, 0);
  const Tensor scale = leaf(at::ones({}, at::kDouble));
  const Tensor loss =
      world.rank == 0 ? y.pow(3).sum() * scale : tie(at::zeros({}, at::kDouble) * scale, y);
  const Tensor g = grad({loss}, {x}, {leaf(at::ones_like(loss))}, std::nullopt, true)[0];
  EXPECT_TRUE(at::equal(g, 3 * x.square()));
  EXPECT_TRUE(at::equal(grad({g.sum()}, {x})[0], 6 * x));
});
TEST(VCollectivesTest, TiedRanksTakePartInSecondDerivatives) {
  run_in_worlds("v_tied", {1, 2, 3}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
