// Random operators on sharded tensors: the same global tensor whatever the mesh and the placements.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/nn/activation_checkpoint.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/random/random_operation.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

using at::Tensor;
using Call = std::function<Tensor(const Tensor&)>;

// Each gives a tensor of [5, 7, 3] from one of them.
const std::map<std::string, Call>& calls() {
  static const auto* calls = new std::map<std::string, Call>{
      {"uniform_", [](const Tensor& x) { return x.clone().uniform_(-1, 2); }},
      {"normal_", [](const Tensor& x) { return x.clone().normal_(1, 2); }},
      {"bernoulli_", [](const Tensor& x) { return x.clone().bernoulli_(0.3); }},
      {"bernoulli_.Tensor", [](const Tensor& x) { return at::empty_like(x).bernoulli_(x); }},
      {"bernoulli_.Tensor, plain",
       [](const Tensor& x) {
         return at::empty_like(x).bernoulli_(at::linspace(0, 1, 3, at::kDouble));
       }},
      {"bernoulli", [](const Tensor& x) { return at::bernoulli(x); }},
      {"bernoulli.p", [](const Tensor& x) { return at::bernoulli(x, 0.4); }},
      {"exponential_", [](const Tensor& x) { return x.clone().exponential_(2); }},
      {"geometric_", [](const Tensor& x) { return x.clone().geometric_(0.4); }},
      {"cauchy_", [](const Tensor& x) { return x.clone().cauchy_(1, 2); }},
      {"log_normal_", [](const Tensor& x) { return x.clone().log_normal_(0, 1); }},
      {"random_", [](const Tensor& x) { return x.clone().random_(); }},
      {"random_.to", [](const Tensor& x) { return x.clone().random_(10); }},
      {"random_.from", [](const Tensor& x) { return x.clone().random_(-5, 10); }},
      {"rand_like", [](const Tensor& x) { return at::rand_like(x); }},
      {"randn_like", [](const Tensor& x) { return at::randn_like(x, at::kFloat); }},
      {"randint_like", [](const Tensor& x) { return at::randint_like(x, 100, at::kLong); }},
      {"randint_like.low", [](const Tensor& x) { return at::randint_like(x, -9, 9); }},
      {"rand_like.out",
       [](const Tensor& x) {
         Tensor out = x.clone();
         return at::rand_like_out(out, x);
       }},
      {"randn_like.out",
       [](const Tensor& x) {
         Tensor out = at::empty_like(x, at::kFloat);
         return at::randn_like_out(out, x);
       }},
      {"randint_like.out",
       [](const Tensor& x) {
         Tensor out = x.clone();
         return at::randint_like_out(out, x, 100);
       }},
      {"randint_like.low_dtype_out",
       [](const Tensor& x) {
         Tensor out = at::empty_like(x).sum();
         return at::randint_like_out(out, x, -9, 9);
       }},
      {"bernoulli.out",
       [](const Tensor& x) {
         Tensor out = x.clone();
         return at::bernoulli_outf(x, std::nullopt, out);
       }},
      {"normal.Tensor_Tensor_out",
       [](const Tensor& x) {
         Tensor out = x.clone();
         return at::normal_outf(x, x, std::nullopt, out);
       }},
      {"normal.Tensor_float_out",
       [](const Tensor& x) {
         Tensor out = x.clone();
         return at::normal_outf(x, 2.0, std::nullopt, out);
       }},
      {"normal.float_Tensor_out",
       [](const Tensor& x) {
         Tensor out = x.clone();
         return at::normal_outf(2.0, x, std::nullopt, out);
       }},
      {"normal.Tensor_float", [](const Tensor& x) { return at::normal(x, 2.0); }},
      {"normal.float_Tensor", [](const Tensor& x) { return at::normal(2.0, x); }},
      {"normal.Tensor_Tensor", [](const Tensor& x) { return at::normal(x, x); }},
      {"dropout", [](const Tensor& x) { return at::dropout(x, 0.4, true); }},
      {"dropout_",
       [](const Tensor& x) {
         Tensor y = x.clone();
         return at::dropout_(y, 0.4, true);
       }},
      {"dropout of all", [](const Tensor& x) { return at::dropout(x, 1, true); }},
      {"alpha_dropout", [](const Tensor& x) { return at::alpha_dropout(x, 0.4, true); }},
      {"feature_dropout", [](const Tensor& x) { return at::feature_dropout(x, 0.4, true); }},
      {"feature_alpha_dropout",
       [](const Tensor& x) { return at::feature_alpha_dropout(x, 0.4, true); }},
      {"native_dropout",
       [](const Tensor& x) { return std::get<0>(at::native_dropout(x, 0.4, true)); }},
      // The imaginary parts.
      {"randn_like, complex",
       [](const Tensor& x) {
         return at::view_as_real(at::randn_like(x, at::kComplexDouble)).select(-1, 1);
       }},
      {"rand_like, complex",
       [](const Tensor& x) {
         return at::view_as_real(at::rand_like(x, at::kComplexFloat)).select(-1, 1);
       }},
      {"rrelu", [](const Tensor& x) { return at::rrelu(x - 0.5, 0.1, 0.3, true); }},
      {"a generator of its own",
       [](const Tensor& x) { return x.clone().normal_(0, 1, at::detail::createCPUGenerator(3)); }},
  };
  return *calls;
}

Tensor whole_input() { return (at::arange(105, at::kDouble) / 105).view({5, 7, 3}); }

// Placed by cutting the whole tensor; Partial: each rank has an equal share.
Tensor placed(const Tensor& whole, const ShardMesh::Ptr& mesh, const Placements& placements) {
  const SpecPtr spec =
      make_spec(mesh, ShardLayout::split(mesh->shape(), placements, whole.sizes().vec()));
  Tensor part = whole;
  for (int64_t dim = 0; dim < whole.dim(); ++dim) {
    const auto d = static_cast<size_t>(dim);
    part = part.narrow(dim, spec->box().offsets[d], spec->box().sizes[d]);
  }
  part = part.clone();
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis].is_partial()) part.div_(mesh->shape()[axis]);
  }
  return wrap(part, spec);
}

std::vector<Placements> placements_of(int64_t ndim) {
  if (ndim == 1) return {{Replicate()}, {Shard(0)}, {Shard(1)}, {Shard(2)}, {Partial()}};
  return {{Replicate(), Shard(1)},
          {Shard(0), Shard(1)},
          {Shard(1), Shard(1)},
          {Partial(), Shard(2)},
          {Shard(1), Replicate()}};
}

const bool kSame = register_rank_function("same_numbers", [] {
  const JoinedWorld world;
  std::vector<ShardMesh::Ptr> meshes = {
      ShardMesh::of(world.manager.initialize_mesh({world.size}, {"all"}))};
  for (const auto& [name, call] : calls()) {
    SCOPED_TRACE(name);
    // What one process alone would get: the whole tensor on a mesh whose axes are Replicate. Plain
    // numbers that a rank draws beside do not matter.
    Tensor expected;
    int64_t count = 0;
    for (const ShardMesh::Ptr& mesh : meshes) {
      for (const Placements& placements : placements_of(mesh->ndim())) {
        SCOPED_TRACE(meshrun::to_string(placements));
        reseed(17);
        if (world.rank == 0) at::rand({3});
        const Tensor got = call(placed(whole_input(), mesh, placements));
        const Tensor whole = ShardTensor(got).full_tensor();
        EXPECT_EQ(whole.sizes(), whole_input().sizes());
        if (!expected.defined()) expected = whole;
        // Sums of shares round.
        EXPECT_TRUE(at::allclose(whole.to(at::kDouble), expected.to(at::kDouble), 1e-12, 1e-12));
        ++count;
      }
    }
    EXPECT_GT(count, 0);
  }
});

const bool kSameOnGrid = register_rank_function("same_numbers_on_a_grid", [] {
  const JoinedWorld world;
  const ShardMesh::Ptr grid =
      ShardMesh::of(world.manager.initialize_mesh({2, 2}, {"dp", "domain"}));
  for (const auto& [name, call] : calls()) {
    SCOPED_TRACE(name);
    reseed(17);
    const Tensor expected =
        ShardTensor(call(placed(whole_input(), grid, {Replicate(), Replicate()}))).full_tensor();
    for (const Placements& placements : placements_of(2)) {
      SCOPED_TRACE(meshrun::to_string(placements));
      reseed(17);
      const Tensor whole = ShardTensor(call(placed(whole_input(), grid, placements))).full_tensor();
      EXPECT_TRUE(at::allclose(whole.to(at::kDouble), expected.to(at::kDouble), 1e-12, 1e-12));
    }
  }
});

const bool kGradients = register_rank_function("dropout_gradients", [] {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = ShardMesh::of(world.manager.initialize_mesh({world.size}, {"all"}));
  for (const Placements& placements : {Placements{Replicate()}, Placements{Shard(1)}}) {
    reseed(5);
    const Tensor x = placed(whole_input() + 1, mesh, placements).requires_grad_();
    const Tensor y = at::dropout(x, 0.25, true);
    y.sum().backward();
    // Kept elements have a gradient of 1 / 0.75, dropped ones of 0.
    const Tensor kept = ShardTensor(y.detach()).full_tensor() != 0;
    const Tensor gradient = ShardTensor(x.grad()).full_tensor();
    EXPECT_TRUE(at::allclose(gradient, kept.to(at::kDouble) / 0.75));
    EXPECT_GT(kept.sum().item<int64_t>(), 60);
    EXPECT_LT(kept.sum().item<int64_t>(), 98);
    // Not in training: the tensor itself.
    EXPECT_TRUE(at::dropout(x, 0.25, false).is_same(x));
  }
  // Without a rule each rank would draw its own: an error, never a gathered copy.
  const Tensor x = placed(whole_input(), mesh, {Shard(0)});
  const at::Generator generator = at::detail::createCPUGenerator(3);
  Tensor out = at::empty_like(x);
  EXPECT_THROW(at::poisson(x), MissingShardRuleError);
  EXPECT_THROW(at::uniform(x), MissingShardRuleError);
  EXPECT_THROW(at::rand_like_out(out, x, generator), MissingShardRuleError);
  EXPECT_THROW(at::bernoulli_out(out, x, 0.5), MissingShardRuleError);
  EXPECT_THROW(at::exponential_out(out, x), MissingShardRuleError);
  EXPECT_THROW(at::native_dropout_out(out, out, x, 0.5, true), MissingShardRuleError);
});

const bool kSlopes = register_rank_function("rrelu_slopes", [] {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = ShardMesh::of(world.manager.initialize_mesh({world.size}, {"all"}));
  const Tensor whole = whole_input() - 0.5;
  for (const Placements& placements : {Placements{Replicate()}, Placements{Shard(1)}}) {
    // Not in training: LibTorch's values and gradient.
    const Tensor leaf = whole.clone().requires_grad_();
    const Tensor expected = at::rrelu(leaf, 0.1, 0.5, false);
    expected.sum().backward();
    Tensor x = placed(whole, mesh, placements).requires_grad_();
    Tensor y = at::rrelu(x, 0.1, 0.5, false);
    y.sum().backward();
    EXPECT_TRUE(at::equal(ShardTensor(y.detach()).full_tensor(), expected.detach()));
    EXPECT_TRUE(at::equal(ShardTensor(x.grad()).full_tensor(), leaf.grad()));

    // In training: each slope is its own, within the bounds, and is the gradient.
    x = placed(whole, mesh, placements).requires_grad_();
    y = at::rrelu(x, 0.1, 0.5, true);
    y.sum().backward();
    const Tensor slopes = ShardTensor(x.grad()).full_tensor();
    EXPECT_TRUE(at::allclose(ShardTensor(y.detach()).full_tensor(), whole * slopes));
    EXPECT_TRUE((slopes == 1).equal(whole > 0));
    const Tensor drawn = slopes.masked_select(whole <= 0);
    EXPECT_GE(drawn.min().item<double>(), 0.1);
    EXPECT_LT(drawn.max().item<double>(), 0.5);
    EXPECT_GT(drawn.std().item<double>(), 0.05);
  }
});

TEST(RandomOperatorsTest, RandomizedLeakyReluDrawsInTrainingAlone) {
  run_in_worlds("rrelu_slopes", {1, 2}, {"ucx"});
}

const bool kAttention = register_rank_function("attention_dropout", [] {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = ShardMesh::of(world.manager.initialize_mesh({world.size}, {"all"}));
  at::manual_seed(1);
  const Tensor whole = at::randn({2, 2, 9, 4}, at::kDouble);
  Tensor expected;
  Tensor expected_gradient;
  for (const Placement& queries : {Replicate(), Shard(0), Shard(1), Shard(2)}) {
    for (const Placement& keys : {Replicate(), Shard(2)}) {
      SCOPED_TRACE(meshrun::to_string(Placements{queries, keys}));
      reseed(5);
      const Tensor q = placed(whole, mesh, {queries}).requires_grad_();
      const Tensor k = placed(whole.flip(0), mesh, {keys}).requires_grad_();
      const Tensor y = at::scaled_dot_product_attention(q, k, k, std::nullopt, 0.3, true);
      (y * y).sum().backward();
      const Tensor got = ShardTensor(y.detach()).full_tensor();
      const Tensor gradient = ShardTensor(k.grad()).full_tensor();
      if (!expected.defined()) {
        expected = got;
        expected_gradient = gradient;
        EXPECT_FALSE(
            at::allclose(got, at::scaled_dot_product_attention(whole, whole.flip(0), whole.flip(0),
                                                               std::nullopt, 0.0, true)));
      }
      EXPECT_TRUE(at::allclose(got, expected, 1e-10, 1e-10));
      EXPECT_TRUE(at::allclose(gradient, expected_gradient, 1e-10, 1e-10));
    }
  }
});

const bool kCheckpoint = register_rank_function("checkpointed_dropout", [] {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = ShardMesh::of(world.manager.initialize_mesh({world.size}, {"all"}));
  Tensor gradients[2];
  for (const bool twice : {false, true}) {
    reseed(9);
    const Tensor x = placed(whole_input() + 1, mesh, {Shard(1)}).requires_grad_();
    const auto drop = [](const Tensor& t) { return at::dropout(t * t, 0.5, true); };
    const Tensor y = twice ? checkpoint(drop, x) : drop(x);
    const Tensor z = at::dropout(y, 0.5, true);  // the count has moved on when y is computed again
    z.sum().backward();
    gradients[twice] = ShardTensor(x.grad()).full_tensor();
    EXPECT_EQ(random_state(), (RandomOperation{9, 2}));
  }
  EXPECT_TRUE(gradients[0].equal(gradients[1]));
});

TEST(RandomOperatorsTest, ActivationsComputedTwiceDropTheSame) {
  run_in_worlds("checkpointed_dropout", {2}, {"ucx"});
}

TEST(RandomOperatorsTest, GiveTheSameGlobalTensorOnEveryMesh) {
  run_in_worlds("same_numbers", {1, 3, 4}, {"ucx"});
  run_in_worlds("same_numbers_on_a_grid", {4}, {"ucx"});
}

TEST(RandomOperatorsTest, DropoutPassesTheGradientOfWhatItKept) {
  run_in_worlds("dropout_gradients", {2}, {"ucx"});
}

TEST(RandomOperatorsTest, AttentionDropsTheSameWeightsOnEveryMesh) {
  run_in_worlds("attention_dropout", {1, 3}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
