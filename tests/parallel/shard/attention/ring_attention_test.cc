#include "parallel/shard/attention/ring_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/split.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/shard/attention/block_attention.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/loopback_backend.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/csrc/autograd/autograd.h"

namespace meshrun {
namespace {

using at::Tensor;
using Sizes = std::vector<int64_t>;

Tensor piece_of(const Tensor& whole, int64_t dim, const Sizes& sizes, int rank) {
  int64_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += sizes[static_cast<size_t>(r)];
  return whole.narrow(dim, begin, sizes[static_cast<size_t>(rank)]);
}

int64_t total(const Sizes& sizes) {
  int64_t sum = 0;
  for (const int64_t size : sizes) sum += size;
  return sum;
}

// Pieces of a sequence on `world` ranks.
std::vector<Sizes> patterns(int world) {
  std::vector<Sizes> all = {Sizes(static_cast<size_t>(world), 4), compute_split_shapes(9, world)};
  Sizes uneven;
  Sizes some_empty;
  for (int r = 0; r < world; ++r) {
    uneven.push_back(1 + 3 * r);
    some_empty.push_back(r % 2 == 0 ? 0 : 5);
  }
  if (world > 1) all.push_back(some_empty);
  all.push_back(uneven);
  return all;
}

enum class Mask { kNone, kBool, kAdditive, kPerHead, kOneRow, kLearned };

struct Case {
  std::string name;
  Sizes batch = {2, 3};  // before queries and keys
  Sizes key_batch = {2, 3};
  int64_t extent = 8;
  int64_t value_extent = 8;
  bool is_causal = false;
  bool enable_gqa = false;
  Mask mask = Mask::kNone;
  std::optional<double> scale = std::nullopt;
  at::ScalarType dtype = at::kDouble;
};

std::vector<Case> cases() {
  return {
      {.name = "plain"},
      {.name = "causal", .is_causal = true},
      {.name = "float32", .dtype = at::kFloat},
      {.name = "float32 causal", .is_causal = true, .dtype = at::kFloat},
      {.name = "bfloat16 causal", .is_causal = true, .dtype = at::kBFloat16},
      {.name = "other value extent", .value_extent = 5},
      {.name = "other value extent, causal", .value_extent = 5, .is_causal = true},
      {.name = "bool mask", .mask = Mask::kBool},
      {.name = "bool mask, other value extent", .value_extent = 3, .mask = Mask::kBool},
      {.name = "additive mask, scale", .mask = Mask::kAdditive, .scale = 0.3},
      {.name = "mask per head", .mask = Mask::kPerHead},
      {.name = "one row of a mask", .mask = Mask::kOneRow},
      {.name = "learned mask", .mask = Mask::kLearned},
      {.name = "grouped queries",
       .batch = {2, 6},
       .key_batch = {2, 2},
       .is_causal = true,
       .enable_gqa = true},
      {.name = "grouped queries with a mask",
       .batch = {2, 6},
       .key_batch = {2, 3},
       .value_extent = 4,
       .enable_gqa = true,
       .mask = Mask::kBool},
      {.name = "no heads", .batch = {}, .key_batch = {}},
      {.name = "three dims", .batch = {3}, .key_batch = {3}, .is_causal = true},
      {.name = "five dims", .batch = {2, 1, 3}, .key_batch = {2, 2, 3}, .mask = Mask::kBool},
      {.name = "one head of keys", .batch = {2, 4}, .key_batch = {1, 1}},
  };
}

Tensor make_mask(const Case& c, int64_t queries, int64_t keys) {
  const at::TensorOptions options = at::TensorOptions(c.dtype);
  switch (c.mask) {
    case Mask::kNone:
      break;
    case Mask::kBool: {
      // Some rows see nothing.
      Tensor mask = at::rand({queries, keys}) < 0.6;
      if (queries > 2) mask[2].fill_(false);
      return mask;
    }
    case Mask::kAdditive:
      return at::randn({queries, keys}, options);
    case Mask::kPerHead: {
      Tensor mask = at::randn({1, c.batch.back(), queries, keys}, options);
      return mask.masked_fill(mask > 1, -std::numeric_limits<double>::infinity());
    }
    case Mask::kOneRow:
      return at::randn({1, keys}, options);
    case Mask::kLearned:
      return at::randn({queries, keys}, options).requires_grad_();
  }
  return {};
}

Sizes shape(Sizes batch, int64_t rows, int64_t columns) {
  batch.insert(batch.end(), {rows, columns});
  return batch;
}

// The whole problem, the same on all ranks, and what LibTorch makes of it.
struct Whole {
  Whole(const Case& c, int64_t queries, int64_t keys) {
    at::manual_seed(queries * 1000 + keys);
    const at::TensorOptions options = at::TensorOptions(c.dtype);
    query = at::randn(shape(c.batch, queries, c.extent), options).requires_grad_();
    key = at::randn(shape(c.key_batch, keys, c.extent), options).requires_grad_();
    value = at::randn(shape(c.key_batch, keys, c.value_extent), options).requires_grad_();
    mask = make_mask(c, queries, keys);
    // What LibTorch gets: float64 for bfloat16.
    const at::ScalarType exact = c.dtype == at::kBFloat16 ? at::kDouble : c.dtype;
    output = at::scaled_dot_product_attention(
        query.to(exact), key.to(exact), value.to(exact),
        mask.defined() ? std::optional<Tensor>(mask) : std::nullopt, 0.0, c.is_causal, c.scale,
        c.enable_gqa);
    cotangent = at::randn(output.sizes(), options);
    output.backward(cotangent.to(exact));
  }

  Tensor query, key, value, mask, output, cotangent;
};

double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : 2e-2;
}

void expect_near(const Tensor& got, const Tensor& expected, const Tensor& whole,
                 const std::string& what) {
  ASSERT_TRUE(got.defined()) << what;
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  const double norm = whole.to(at::kDouble).norm().item<double>();
  const double off =
      (got.detach().to(at::kDouble) - expected.to(at::kDouble)).norm().item<double>();
  EXPECT_LE(off, tolerance(got.scalar_type()) * std::max(norm, 1.0)) << what;
}

AttentionOptions options_of(const Case& c, const Tensor& mask) {
  AttentionOptions options{.is_causal = c.is_causal, .scale = c.scale, .enable_gqa = c.enable_gqa};
  if (mask.defined()) options.attn_mask = mask;
  return options;
}

Tensor leaf(const Tensor& piece) { return piece.detach().clone().requires_grad_(); }

// This rank's rows, a leaf of its own where it learns.
Tensor mask_rows(const Tensor& mask, const Sizes& sizes, int rank) {
  if (!mask.defined() || mask.size(-2) == 1) return mask;
  const Tensor rows = piece_of(mask, mask.dim() - 2, sizes, rank);
  return mask.requires_grad() ? leaf(rows) : rows;
}

void attend_in_a_ring() {
  const JoinedWorld world;
  for (const Case& c : cases()) {
    for (const Sizes& queries : patterns(world.size)) {
      for (const Sizes& keys : {queries, compute_split_shapes(11, world.size)}) {
        SCOPED_TRACE(c10::str(c.name, " queries ", at::IntArrayRef(queries), " keys ",
                              at::IntArrayRef(keys)));
        const Whole whole(c, total(queries), total(keys));
        const Tensor query = leaf(piece_of(whole.query, -2, queries, world.rank));
        const Tensor key = leaf(piece_of(whole.key, -2, keys, world.rank));
        const Tensor value = leaf(piece_of(whole.value, -2, keys, world.rank));
        const Tensor mask = mask_rows(whole.mask, queries, world.rank);
        const auto piece = [&](const Tensor& tensor, const Sizes& sizes) {
          return piece_of(tensor, -2, sizes, world.rank);
        };
        const Tensor output = ring_attention(query, key, value, queries, keys, options_of(c, mask));
        expect_near(output, piece(whole.output, queries), whole.output, "output");
        output.backward(piece(whole.cotangent, queries));
        expect_near(query.grad(), piece(whole.query.grad(), queries), whole.query.grad(), "dQ");
        expect_near(key.grad(), piece(whole.key.grad(), keys), whole.key.grad(), "dK");
        expect_near(value.grad(), piece(whole.value.grad(), keys), whole.value.grad(), "dV");
        if (c.mask == Mask::kLearned) {
          expect_near(mask.grad(), piece(whole.mask.grad(), queries), whole.mask.grad(), "dMask");
        }
      }
    }
  }
}

// Where memory holds few scores.
void in_parts(const std::function<void()>& attend) {
  const int64_t most = most_scores();
  set_most_scores(40);
  attend();
  set_most_scores(most);
}

const bool kRing = register_rank_function("ring", attend_in_a_ring);
const bool kRingInParts =
    register_rank_function("ring in parts", [] { in_parts(attend_in_a_ring); });

TEST(RingAttentionTest, EqualsAttentionOfTheWhole) {
  run_in_worlds("ring", {1, 2, 3, 4}, {"ucx"});
  run_in_worlds("ring", {3}, {"gloo"});
  run_in_worlds("ring in parts", {2}, {"ucx"});
}

const bool kMerged = register_rank_function("merged", [] {
  const JoinedWorld world;
  for (const Case& c : cases()) {
    for (const Sizes& keys : patterns(world.size)) {
      SCOPED_TRACE(c10::str(c.name, " keys ", at::IntArrayRef(keys)));
      const Whole whole(c, 10, total(keys));
      const Tensor query = leaf(whole.query);
      const Tensor key = leaf(piece_of(whole.key, -2, keys, world.rank));
      const Tensor value = leaf(piece_of(whole.value, -2, keys, world.rank));
      const Tensor mask =
          whole.mask.defined() && whole.mask.requires_grad() ? leaf(whole.mask) : whole.mask;
      const Tensor output = merged_attention(query, key, value, keys, options_of(c, mask));
      expect_near(output, whole.output, whole.output, "output");
      output.backward(whole.cotangent);
      const auto piece = [&](const Tensor& tensor) {
        return piece_of(tensor, -2, keys, world.rank);
      };
      expect_near(query.grad(), whole.query.grad(), whole.query.grad(), "dQ");
      expect_near(key.grad(), piece(whole.key.grad()), whole.key.grad(), "dK");
      expect_near(value.grad(), piece(whole.value.grad()), whole.value.grad(), "dV");
      if (c.mask == Mask::kLearned) {
        expect_near(mask.grad(), whole.mask.grad(), whole.mask.grad(), "dMask");
      }
    }
  }
});

TEST(MergedAttentionTest, EqualsAttentionOfTheWhole) {
  run_in_worlds("merged", {1, 2, 4}, {"ucx"});
}

TEST(WholeKeysAttentionTest, PiecesOfQueriesMakeUpTheWhole) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Sizes queries = {3, 0, 6, 1};
    const Whole whole(c, total(queries), 7);
    const Tensor key = leaf(whole.key);
    const Tensor value = leaf(whole.value);
    int64_t offset = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const Tensor query = leaf(piece_of(whole.query, -2, queries, rank));
      const Tensor mask = mask_rows(whole.mask, queries, rank);
      AttentionOptions options = options_of(c, mask);
      options.first_query = offset;
      const Tensor output = whole_keys_attention(query, key, value, options);
      expect_near(output, piece_of(whole.output, -2, queries, rank), whole.output, "output");
      output.backward(piece_of(whole.cotangent, -2, queries, rank));
      expect_near(query.grad(), piece_of(whole.query.grad(), -2, queries, rank), whole.query.grad(),
                  "dQ");
      offset += queries[static_cast<size_t>(rank)];
    }
    // Accumulated over the pieces.
    expect_near(key.grad(), whole.key.grad(), whole.key.grad(), "dK");
    expect_near(value.grad(), whole.value.grad(), whole.value.grad(), "dV");
  }
}

TEST(WholeKeysAttentionTest, PartsMakeUpTheWhole) {
  in_parts([] {
    for (const Case& c : cases()) {
      SCOPED_TRACE(c.name);
      const Whole whole(c, 10, 7);
      const Tensor query = leaf(whole.query);
      const Tensor key = leaf(whole.key);
      const Tensor value = leaf(whole.value);
      const Tensor mask = mask_rows(whole.mask, {10}, 0);
      const Tensor output = whole_keys_attention(query, key, value, options_of(c, mask));
      expect_near(output, whole.output, whole.output, "output");
      output.backward(whole.cotangent);
      expect_near(query.grad(), whole.query.grad(), whole.query.grad(), "dQ");
      expect_near(key.grad(), whole.key.grad(), whole.key.grad(), "dK");
      expect_near(value.grad(), whole.value.grad(), whole.value.grad(), "dV");
      if (mask.defined() && mask.requires_grad()) {
        expect_near(mask.grad(), whole.mask.grad(), whole.mask.grad(), "dMask");
      }
    }
  });
}

// The same weights are dropped.
TEST(WholeKeysAttentionTest, PartsDropAsTheWholeDoes) {
  for (const bool is_causal : {false, true}) {
    for (const int64_t key_heads : {1, 2, 4}) {
      SCOPED_TRACE(c10::str("key heads ", key_heads, is_causal ? ", causal" : ""));
      at::manual_seed(7);
      const Tensor query = at::randn({3, 4, 10, 8}, at::kDouble);
      const Tensor keys = at::randn({2, 3, key_heads, 9, 8}, at::kDouble);
      AttentionOptions options{.is_causal = is_causal, .enable_gqa = true};
      options.dropout = AttentionDropout{0.4, {.seed = 5, .counter = 3}, {3, 4, 10, 9}, {}};
      const auto attend = [&] {
        const Tensor q = leaf(query);
        const Tensor kv = leaf(keys);
        const Tensor output = whole_keys_attention(q, kv[0], kv[1], options);
        output.sin().sum().backward();
        return at::cat({output.detach().flatten(), q.grad().flatten(), kv.grad().flatten()});
      };
      const Tensor whole = attend();
      for (const int64_t most : {1, 9, 30, 90, 400}) {
        const int64_t before = most_scores();
        set_most_scores(most);
        const Tensor parts = attend();
        set_most_scores(before);
        EXPECT_TRUE(at::allclose(parts, whole, 1e-12, 1e-12)) << most;
      }
    }
  }
}

const bool kRepeats = register_rank_function("repeats", [] {
  const JoinedWorld world;
  const Sizes sizes = compute_split_shapes(37, world.size);
  at::manual_seed(world.rank);
  const int64_t own = sizes[static_cast<size_t>(world.rank)];
  const Tensor q = at::randn({1, 2, own, 16});
  const Tensor k = at::randn({1, 2, own, 16});
  Tensor first[2];
  for (Tensor& kept : first) {
    const Tensor key = leaf(k);
    const Tensor output = ring_attention(q, key, key, sizes, sizes, {.is_causal = true});
    output.sum().backward();
    kept = at::cat({output.detach(), key.grad()});
  }
  EXPECT_TRUE(first[0].equal(first[1]));
  // Only the queries, nothing, and a second derivative.
  const Tensor query = leaf(q);
  ring_attention(query, k, k, sizes, sizes).sum().backward();
  EXPECT_TRUE(query.grad().defined());
  {
    const c10::NoGradGuard no_grad;
    EXPECT_FALSE(ring_attention(query, k, k, sizes, sizes).requires_grad());
  }
});

TEST(RingAttentionTest, EveryRunGivesTheSameBits) { run_in_worlds("repeats", {4}, {"ucx"}); }

const bool kErrors = register_rank_function("errors", [] {
  const JoinedWorld world;
  const Sizes sizes(static_cast<size_t>(world.size), 4);
  const Tensor x = at::randn({1, 2, 4, 8});
  const bool odd = world.rank == 1;
  expect_error_on_all_ranks(
      [&] { ring_attention(odd ? x.narrow(2, 0, 3) : x, x, x, sizes, sizes); }, "query_sizes");
  expect_error_on_all_ranks([&] { ring_attention(x, x, x, sizes, odd ? Sizes{4} : sizes); },
                            "key_sizes");
  expect_error_on_all_ranks(
      [&] { ring_attention(x, odd ? x.to(at::kDouble) : x, x, sizes, sizes); }, "dtype");
  expect_error_on_all_ranks([&] { ring_attention(x, x, x, sizes, sizes, {.is_causal = odd}); },
                            "causal");
  expect_error_on_all_ranks(
      [&] {
        ring_attention(x, x, x, sizes, sizes,
                       {.attn_mask = at::zeros({4, odd ? 5 : 4 * world.size})});
      },
      "attn_mask");
  expect_error_on_all_ranks(
      [&] { merged_attention(x, x, x, odd ? Sizes(sizes.size(), 3) : sizes); }, "key_sizes");
  expect_error_on_all_ranks([&] { merged_attention(odd ? x.to(at::kLong) : x, x, x, sizes); },
                            "dtype");
  // The group goes on.
  ring_attention(x, x, x, sizes, sizes);
});

TEST(RingAttentionTest, AWrongCallIsAnErrorOnAllRanks) { run_in_worlds("errors", {3}, {"ucx"}); }

TEST(RingAttentionTest, HasNoSecondDerivative) {
  const auto group = LoopbackBackend::make_group(0, 1);
  const Tensor query = at::randn({1, 1, 4, 8}).requires_grad_();
  const Tensor output = ring_attention(query, query, query, {4}, {4}, {}, group);
  output.sum().backward({}, /*retain_graph=*/true, /*create_graph=*/false);
  const Tensor weight = at::ones(output.sizes()).requires_grad_();
  const auto gradients =
      torch::autograd::grad({output}, {query}, {weight}, std::nullopt, /*create_graph=*/true);
  EXPECT_THROW(gradients[0].sum().backward(), c10::NotImplementedError);
}

TEST(RingAttentionTest, CausalBlocksTravelNoFartherThanTheyAreSeen) {
  const Sizes sizes = {4, 6, 2, 3};
  const int64_t element = 2 * 8 * 2 * 4;  // heads, extent, key and value, bytes of float32
  // Rank 1 sends its own block on, and that of rank 0; backward, the gradient of both as well.
  const int64_t expected[] = {4, 6 + 4, 2 + 6 + 4, 0};
  for (int rank = 0; rank < 4; ++rank) {
    const auto group = LoopbackBackend::make_group(rank, 4);
    const auto own = sizes[static_cast<size_t>(rank)];
    const Tensor x = at::randn({1, 2, own, 8}).requires_grad_();
    const Tensor output = ring_attention(x, x, x, sizes, sizes, {.is_causal = true}, group);
    EXPECT_EQ(LoopbackBackend::of(group).bytes_sent(),
              expected[static_cast<size_t>(rank)] * element);
    const int64_t before = LoopbackBackend::of(group).bytes_sent();
    output.sum().backward();
    // The last rank sends all gradients home.
    const int64_t home = rank == 3 ? 4 + 6 + 2 : 0;
    EXPECT_EQ(LoopbackBackend::of(group).bytes_sent() - before,
              (2 * expected[static_cast<size_t>(rank)] + home) * element);
  }
}

}  // namespace
}  // namespace meshrun
