// Norms of gradients in pieces, in real rank processes, against LibTorch's on one.
#include "parallel/nn/clip_grad.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "parallel/base/no_collectives.h"
#include "parallel/collectives/all_gather_v.h"
#include "parallel/nn/fno.h"
#include "parallel/nn/sharded_parameters.h"
#include "parallel/nn/zero_redundancy_optimizer.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/nn/on_mesh.h"
#include "tests/parallel/support/parameters.h"
#include "tests/parallel/support/rank_processes.h"
#include "tests/parallel/support/tensor_oracle.h"

namespace meshrun {

// Declared to be named in calls that are never made.
namespace given {
extern const std::vector<at::Tensor> list;
}  // namespace given

namespace {

using at::Tensor;
using torch::optim::SGDOptions;

const std::vector<double> kNormTypes = {2, 1, 3, std::numeric_limits<double>::infinity(), 0};

FNO make_network(const std::optional<std::string>& group) {
  at::manual_seed(3);
  FNOOptions options;
  options.in_channels(2).out_channels(1).width(6).num_layers(2).projection_channels(8);
  options.modes({3, 4});
  if (group) options.group(GroupArgument(*group));
  return FNO(options);
}

// Those of the unsharded network, or this rank's pieces of them.
void set_gradients(FNO& network, int seed) {
  const auto shards = parameter_shards(*network);
  int index = 0;
  for (const auto& item : network->named_parameters()) {
    const auto shard = shards.find(item.key());
    at::manual_seed(100 * seed + index++);
    const Tensor whole = at::randn(
        shard == shards.end() ? item.value().sizes() : at::IntArrayRef(shard->second.global_shape));
    item.value().mutable_grad() =
        shard == shards.end() ? whole : shard_of(whole, shard->second).clone();
  }
}

void expect_same_bits_on_all_ranks(double value) {
  const Tensor all = all_gather_v(at::full({1}, value, at::kDouble));
  EXPECT_TRUE(at::equal(all, at::full_like(all, value))) << all;
}

void expect_near(double actual, double wanted) { EXPECT_NEAR(actual / wanted, 1, 1e-6); }

const bool kPieces = register_rank_function("clip_pieces", [] {
  const JoinedWorld world;
  std::string spatial = "world";
  if (world.size == 4) {
    world.manager.initialize_mesh({2, 2}, {"dp", "spatial"});
    spatial = "spatial";
  }
  FNO network = make_network(spatial), serial = make_network(std::nullopt);
  for (const double norm_type : kNormTypes) {
    SCOPED_TRACE(norm_type);
    set_gradients(network, 1);
    set_gradients(serial, 1);
    const double total = get_total_norm(network->parameters(), norm_type);
    const double norm = clip_grad_norm_(network->parameters(), 0.5, norm_type);
    EXPECT_EQ(norm, total);
    expect_same_bits_on_all_ranks(norm);
    expect_near(norm, torch::nn::utils::clip_grad_norm_(serial->parameters(), 0.5, norm_type));
    const auto shards = parameter_shards(*network);
    const auto wanted = serial->named_parameters();
    for (const auto& item : network->named_parameters()) {
      const auto shard = shards.find(item.key());
      Tensor gradient = item.value().grad();
      if (shard != shards.end()) gradient = unsharded(gradient, shard->second);
      EXPECT_LE(relative_l2(gradient, wanted[item.key()].grad()), 1e-6) << item.key();
    }
  }
  {
    // Also where one rank has all of the pieces.
    const NoCollectives none("update()");
    for (const double norm_type : kNormTypes) {
      const std::string text =
          error_of([&] { clip_grad_norm_(network->parameters(), 1.0, norm_type); });
      EXPECT_NE(text.find("clip_grad_norm_ inside update()"), std::string::npos) << text;
    }
    EXPECT_NE(error_of([&] {
                get_total_norm(network->parameters());
              }).find("get_total_norm inside update()"),
              std::string::npos);
    EXPECT_EQ(get_total_norm(at::ones({1})), 0) << "nothing is sent";
  }
  // A rank whose piece has no gradient still takes part.
  set_gradients(network, 2);
  const bool is_first = world.manager.group_rank(spatial) == 0;
  for (const Tensor& parameter : network->parameters()) {
    if (!is_first && announced_shard(parameter)) parameter.mutable_grad().reset();
  }
  expect_same_bits_on_all_ranks(get_total_norm(network->parameters()));
  const std::vector<Tensor> parameters = network->parameters();
  EXPECT_EQ(get_total_norm(parameters, 0), static_cast<double>(parameters.size()));
  // What is not a number on one rank is none on all.
  const Tensor piece = network->named_parameters()["spectral.0.weight"];
  piece.mutable_grad() = at::full_like(piece, is_first ? std::nan("") : 1.0);
  for (const double norm_type : {2.0, std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(std::isnan(get_total_norm(network->parameters(), norm_type)));
    expect_error_on_all_ranks([&] { clip_grad_norm_(network->parameters(), 1, norm_type, true); },
                              "non-finite");
  }
});

TEST(ClipGradTest, PiecesCountTogetherAndAllRanksGetTheNormOfOneProcess) {
  run_in_worlds("clip_pieces", {1, 2, 4}, {"ucx"});
  run_in_worlds("clip_pieces", {2}, {"gloo"});
}

const bool kZero = register_rank_function("clip_zero", [] {
  const JoinedWorld world;
  const bool on_mesh = world.size == 4;
  std::optional<std::string> spatial;
  GroupArgument data;
  if (on_mesh) {
    world.manager.initialize_mesh({2, 2}, {"dp", "spatial"});
    spatial = "spatial";
    data = GroupArgument("dp");
  }
  const int replicas = on_mesh ? 2 : world.size;
  const int replica = on_mesh ? world.manager.group_rank("dp") : world.rank;
  for (const bool reduced : {false, true}) {
    FNO network = make_network(spatial), serial = make_network(std::nullopt);
    ZeroRedundancyOptimizer optimizer(network->parameters(), SGDOptions(0.1),
                                      {.group = data, .gradients_are_reduced = reduced});
    torch::optim::SGD plain(serial->parameters(), SGDOptions(0.1));
    // The mean of the replicas' gradients.
    std::vector<Tensor> means;
    for (int r = 0; r < replicas; ++r) {
      set_gradients(serial, r + 1);
      const std::vector<Tensor> parameters = serial->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        const Tensor share = parameters[i].grad() / replicas;
        if (r == 0) {
          means.push_back(share);
        } else {
          means[i] += share;
        }
      }
    }
    for (size_t i = 0; i < means.size(); ++i) serial->parameters()[i].mutable_grad() = means[i];
    if (reduced) {
      const auto shards = parameter_shards(*network);
      const auto wanted = serial->named_parameters();
      for (const auto& item : network->named_parameters()) {
        const auto shard = shards.find(item.key());
        const Tensor mean = wanted[item.key()].grad();
        item.value().mutable_grad() =
            shard == shards.end() ? mean.clone() : shard_of(mean, shard->second).clone();
      }
    } else {
      set_gradients(network, replica + 1);
    }
    if (!reduced && replicas > 1) {
      expect_error_on_all_ranks([&] { clip_grad_norm_(network->parameters(), 0.5); },
                                "Pass the optimizer");
    }
    const double norm = clip_grad_norm_(optimizer, 0.5);
    expect_same_bits_on_all_ranks(norm);
    expect_near(norm, torch::nn::utils::clip_grad_norm_(serial->parameters(), 0.5));
    optimizer.step();
    plain.step();
    const auto shards = parameter_shards(*network);
    const auto wanted = serial->named_parameters();
    for (const auto& item : network->named_parameters()) {
      const auto shard = shards.find(item.key());
      Tensor parameter = item.value().detach();
      if (shard != shards.end()) parameter = unsharded(parameter, shard->second);
      EXPECT_LE(relative_l2(parameter, wanted[item.key()].detach()), 1e-6) << item.key();
    }
  }
});

TEST(ClipGradTest, AnOptimizerOfReducedSlicesClipsTheMeanGradient) {
  run_in_worlds("clip_zero", {1, 2, 3, 4}, {"ucx"});
}

const bool kSharded = register_rank_function("clip_shard_tensor", [] {
  const JoinedWorld world;
  const TestMesh on = mesh_of(world);
  at::manual_seed(1);
  const Tensor a = at::randn({6, 5}), b = at::randn({3}), c = at::randn({4, 4});
  const auto with_gradient = [&](const Tensor& gradient, const Placements& placements) {
    const Tensor parameter = cut(at::zeros_like(gradient), on.mesh, placements);
    parameter.mutable_grad() = cut(gradient.clone(), on.mesh, placements);
    return parameter;
  };
  const auto axes = static_cast<size_t>(on.mesh.ndim());
  for (const double norm_type : {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
    SCOPED_TRACE(norm_type);
    const Tensor sharded = with_gradient(a, on.placements(0, 1));
    const Tensor replicated = with_gradient(b, Placements(axes));
    const Tensor plain = at::zeros({4, 4});
    plain.mutable_grad() = c.clone();
    std::vector<Tensor> serial = {at::zeros({6, 5}), at::zeros({3}), at::zeros({4, 4})};
    serial[0].mutable_grad() = a.clone();
    serial[1].mutable_grad() = b.clone();
    serial[2].mutable_grad() = c.clone();
    const double norm = clip_grad_norm_({sharded, replicated, plain}, 0.5, norm_type);
    expect_same_bits_on_all_ranks(norm);
    expect_near(norm, torch::nn::utils::clip_grad_norm_(serial, 0.5, norm_type));
    EXPECT_LE(relative_l2(ShardTensor(sharded.grad()).full_tensor(), serial[0].grad()), 1e-6);
    EXPECT_LE(relative_l2(ShardTensor(replicated.grad()).full_tensor(), serial[1].grad()), 1e-6);
    EXPECT_LE(relative_l2(plain.grad(), serial[2].grad()), 1e-6);
  }
  // Summands are added up first.
  const Tensor parameter = cut(at::zeros({3}), on.mesh, Placements(axes));
  Placements partial(axes);
  partial.back() = Partial();
  parameter.mutable_grad() = ShardTensor::from_local(b, on.mesh, partial);
  const double summands = on.mesh.ndim() == 2 ? 2 : world.size;
  expect_near(get_total_norm(parameter), summands * b.norm().item<double>());
});

TEST(ClipGradTest, ShardTensorsCountOverTheirMesh) {
  run_in_worlds("clip_shard_tensor", {1, 2, 4}, {"ucx"});
}

TEST(ClipGradTest, EqualsLibTorchOnOneRank) {
  EXPECT_EQ(get_total_norm(std::vector<Tensor>{}), 0);
  Tensor x = at::zeros({1000}, at::kHalf), unused = at::zeros({3});
  EXPECT_EQ(clip_grad_norm_({x, unused}, 1.0), 0);
  at::manual_seed(1);
  x.mutable_grad() = at::randn({1000}, at::kDouble).mul(100).to(at::kHalf);
  // LibTorch rounds it to float16.
  expect_near(get_total_norm(x), x.grad().to(at::kDouble).norm().item<double>());
  clip_grad_norm_({x, unused}, 10.0);
  EXPECT_NEAR(get_total_norm(x), 10, 1e-2);

  const Tensor dense = at::zeros({4, 2});
  const Tensor table = at::zeros({4, 2});
  dense.mutable_grad() = at::arange(8, at::kFloat).remainder(3).view({4, 2});
  table.mutable_grad() = dense.grad().to_sparse();
  expect_near(clip_grad_norm_(table, 1.0), dense.grad().norm().item<double>());
  EXPECT_LE(relative_l2(table.grad().to_dense(), dense.grad() / dense.grad().norm()), 1e-5);
  // Below the limit nothing changes.
  const Tensor kept = dense.grad().clone();
  clip_grad_norm_(dense, 100);
  EXPECT_TRUE(at::equal(dense.grad(), kept));
  expect_near(get_total_norm(dense, -std::numeric_limits<double>::infinity()) + 1, 1);
}

// As parameters() of a module lists tied weights.
TEST(ClipGradTest, ATensorThatIsGivenTwiceCountsOnce) {
  Tensor tied = at::zeros({1}), other = at::zeros({1});
  tied.mutable_grad() = at::full({1}, 3.0F);
  other.mutable_grad() = at::full({1}, 4.0F);
  expect_near(get_total_norm({tied, other, tied}), 5);
  EXPECT_EQ(get_total_norm({tied, other, tied}, 0), 2);
  expect_near(clip_grad_norm_({tied, other, tied}, 0.5), 5);
  expect_near(tied.grad().item<double>(), 0.3);
  expect_near(other.grad().item<double>(), 0.4);
}

TEST(ClipGradTest, ErrorsOfNonfiniteNormsTakeBoolsForBools) {
  using namespace given;
  EXPECT_TAKES_BOOL_ONLY(get_total_norm(list, 2.0, value));
  EXPECT_TAKES_BOOL_ONLY(clip_grad_norm_(list, 1.0, 2.0, value));
}

}  // namespace
}  // namespace meshrun
