// DistributedAFNO and its layers in real rank processes, against AFNO with the same seed.
#include "parallel/nn/distributed_afno.h"

#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/base/errors.h"
#include "parallel/base/split.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/nn/afno.h"
#include "parallel/nn/distributed_data_parallel.h"
#include "parallel/nn/sharded_module.h"
#include "parallel/nn/sharded_parameters.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/parameters.h"
#include "tests/parallel/support/rank_processes.h"
#include "tests/parallel/support/rank_world.h"
#include "tests/parallel/support/tensor_oracle.h"

namespace meshrun {

// Declared to be named in calls that are never made.
namespace given {
struct OpenModule : ShardedModule {
  using ShardedModule::register_shard;
};
extern OpenModule& module;
extern const std::string name;
extern const at::Tensor whole;
}  // namespace given

namespace {

using at::Tensor;

constexpr char kModel[] = "model_parallel";

// All ranks' parts along `dim`; `dim` -1: there is one part.
struct Part {
  int64_t dim = -1;
  const char* group = kModel;
  int64_t unit = 1;  // pieces are multiples of it

  Tensor operator()(const Tensor& whole) const {
    if (dim < 0) return whole;
    const DistributedManager& manager = DistributedManager::get();
    const SplitRange range =
        split_range(whole.size(dim) / unit, manager.group_size(group), manager.group_rank(group));
    return whole.narrow(dim, range.begin * unit, range.size() * unit);
  }
};

// Which part of the input and of the output a rank has.
struct Parts {
  std::vector<Part> input, output;
};

Tensor part_of(Tensor whole, const std::vector<Part>& parts) {
  for (const Part& part : parts) whole = part(whole);
  return whole;
}

// The unsharded tensor under a parameter's name.
using Whole = std::function<Tensor(const std::string& name, const Tensor& piece)>;

Whole wholes_of(const torch::nn::Module& model) {
  const auto shards = parameter_shards(model);
  return [shards](const std::string& name, const Tensor& piece) {
    const auto found = shards.find(name);
    return found == shards.end() ? piece : unsharded(piece, found->second);
  };
}

// The same model twice: outputs, gradients and ten optimizer steps.
template <typename Distributed>
void expect_equal_training(AFNO serial, Distributed model, const Parts& parts,
                           at::ScalarType type) {
  const double tolerance = type == at::kDouble ? 1e-11 : 1e-5;
  serial->to(type);
  model->to(type);
  const Whole whole = wholes_of(*model);
  const auto references = serial->named_parameters();
  const auto parameters = model->named_parameters();
  ASSERT_EQ(references.size(), parameters.size());
  for (const auto& item : references) {
    ASSERT_TRUE(parameters.contains(item.key())) << item.key();
    ASSERT_TRUE(at::equal(whole(item.key(), parameters[item.key()]), item.value())) << item.key();
  }
  const auto options = torch::optim::AdamOptions(1e-3);
  torch::optim::Adam serial_adam(serial->parameters(), options);
  torch::optim::Adam adam(model->parameters(), options);
  const AFNOOptions& shape = serial->options();
  for (int step = 0; step < 10; ++step) {
    const auto field = [&](int64_t channels) {
      return at::randn({2, channels, shape.inp_shape()[0], shape.inp_shape()[1]}, at::kDouble)
          .to(type);
    };
    const Tensor x = field(shape.in_channels()), target = field(shape.out_channels());
    const Tensor x_serial = x.clone().requires_grad_();
    const Tensor x_part = part_of(x, parts.input).contiguous().requires_grad_();
    serial_adam.zero_grad();
    adam.zero_grad();
    const Tensor y_serial = serial(x_serial);
    (y_serial - target).square().sum().backward();
    const Tensor y = model(x_part);
    (y - part_of(target, parts.output)).square().sum().backward();
    ASSERT_LT(relative_l2(y, part_of(y_serial, parts.output)), tolerance)
        << "output, step " << step;
    ASSERT_LT(relative_l2(x_part.grad(), part_of(x_serial.grad(), parts.input)), tolerance)
        << "input's gradient, step " << step;
    for (const auto& item : references) {
      if (step > 0) break;
      ASSERT_LT(relative_l2(whole(item.key(), parameters[item.key()].grad()), item.value().grad()),
                tolerance)
          << "gradient of " << item.key();
    }
    serial_adam.step();
    adam.step();
  }
  for (const auto& item : references) {
    ASSERT_LT(
        relative_l2(whole(item.key(), parameters[item.key()]).detach(), item.value().detach()),
        tolerance)
        << "after ten steps: " << item.key();
  }
}

AFNO serial_of(const AFNOOptions& options) {
  at::manual_seed(11);
  return AFNO(options);
}

// Wider than high, so that some modes are dropped.
DistributedAFNOOptions small() {
  return DistributedAFNOOptions({8, 12}, 4).out_channels(3).patch_size(2).embed_dim(16).depth(2);
}
AFNOOptions small_serial() {
  return AFNOOptions({8, 12}, 4, 3).patch_size({2, 2}).embed_dim(16).depth(2).num_blocks(4);
}

const bool kTraining = register_rank_function("afno_training", [] {
  const JoinedWorld world;
  ASSERT_EQ(world.manager.group_size(kModel), world.size);
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (const auto& [inputs, outputs] : {std::pair(false, false), std::pair(true, true)}) {
      AFNO serial = serial_of(small_serial());
      at::manual_seed(11);
      DistributedAFNO model(
          small().channel_parallel_inputs(inputs).channel_parallel_outputs(outputs));
      Parts parts;
      if (inputs) parts.input = {{.dim = 1}};
      if (outputs) parts.output = {{.dim = 1}};
      expect_equal_training(serial, model, parts, type);
    }
  }
  // Everything else that the network can be told.
  AFNO serial = serial_of(AFNOOptions({6, 8}, 4, 8)
                              .patch_size({3, 2})
                              .embed_dim(8)
                              .depth(1)
                              .num_blocks(8)
                              .mlp_ratio(2.5)
                              .sparsity_threshold(0.002)
                              .hard_thresholding_fraction(0.5));
  at::manual_seed(11);
  DistributedAFNONet net(DistributedAFNONetOptions()
                             .inp_shape({6, 8})
                             .patch_size({3, 2})
                             .in_chans(4)
                             .out_chans(8)
                             .embed_dim(8)
                             .depth(1)
                             .num_blocks(8)
                             .mlp_ratio(2.5)
                             .sparsity_threshold(0.002)
                             .hard_thresholding_fraction(0.5)
                             .output_is_matmul_parallel(true)
                             .group(world.manager.group(kModel)));
  expect_equal_training(serial, net, {.output = {{.dim = 1}}}, at::kDouble);
});

void run_with_model_parallel(const std::string& function, int world, int size,
                             const std::string& backend = "ucx") {
  SCOPED_TRACE(backend + ", world of " + std::to_string(world));
  std::vector<Variables> ranks = env_ranks(world);
  for (Variables& rank : ranks) {
    rank["MESHRUN_BACKEND"] = backend;
    if (size > 0) rank["MODEL_PARALLEL_SIZE"] = std::to_string(size);
  }
  expect_success(run_ranks(function, ranks));
}

TEST(DistributedAfnoTest, EqualsAfnoInTraining) {
  for (const int size : {1, 2, 4}) run_with_model_parallel("afno_training", size, size);
  run_with_model_parallel("afno_training", 2, 2, "gloo");
}

// Fields of which ranks have unequal numbers of columns, and one has none.
const bool kMesh = register_rank_function("afno_mesh", [] {
  const JoinedWorld world;
  const int64_t model_ranks = world.size == 4 ? 2 : 1;
  world.manager.initialize_mesh({-1, model_ranks}, {"spatial_parallel", kModel});
  for (const int64_t width : {12, 10, 2}) {
    const Part columns{.dim = 3, .group = "spatial_parallel", .unit = 2};
    AFNOOptions options = small_serial().inp_shape({8, width}).hard_thresholding_fraction(0.9);
    for (const bool parallel : {false, true}) {
      AFNO serial = serial_of(options);
      at::manual_seed(11);
      DistributedAFNONet net(DistributedAFNONetOptions()
                                 .inp_shape({8, width})
                                 .patch_size({2, 2})
                                 .in_chans(4)
                                 .out_chans(3)
                                 .embed_dim(16)
                                 .depth(2)
                                 .num_blocks(4)
                                 .hard_thresholding_fraction(0.9)
                                 .input_is_matmul_parallel(parallel)
                                 .output_is_matmul_parallel(parallel)
                                 .spatial_group("spatial_parallel"));
      Parts parts{.input = {columns}, .output = {columns}};
      if (parallel) {
        parts.input.push_back({.dim = 1});
        parts.output.push_back({.dim = 1});
      }
      expect_equal_training(serial, net, parts, at::kDouble);
    }
  }
  AFNO serial = serial_of(small_serial());
  // Rank 0's seed is all ranks'; what they draw next is their own.
  at::manual_seed(11 + world.rank);
  DistributedAFNO model(small().spatial_group("spatial_parallel"));
  at::manual_seed(12);
  const Part columns{.dim = 3, .group = "spatial_parallel", .unit = 2};
  expect_equal_training(serial, model, {{columns}, {columns}}, at::kFloat);
});

TEST(DistributedAfnoTest, EqualsAfnoOnAMesh) {
  for (const int size : {2, 3, 4}) run_with_model_parallel("afno_mesh", size, 0);
}

// What is frozen in the first passes has the sum of the ranks' gradients once it is trained.
const bool kUnfreezes = register_rank_function("afno_unfreezes", [] {
  const JoinedWorld world;
  const int64_t model_ranks = world.size == 4 ? 2 : 1;
  world.manager.initialize_mesh({-1, model_ranks}, {"spatial_parallel", kModel});
  const Part columns{.dim = 3, .group = "spatial_parallel", .unit = 2};
  for (const std::string trained : {"", "head.weight"}) {
    AFNO serial = serial_of(small_serial());
    at::manual_seed(11);
    DistributedAFNO model(small().spatial_group("spatial_parallel"));
    for (auto& item : model->named_parameters())
      item.value().set_requires_grad(item.key() == trained);
    Tensor x = columns(at::randn({2, 4, 8, 12})).contiguous().requires_grad_();
    model(x).sum().backward();
    EXPECT_GT(x.grad().abs().max().item<float>(), 0);
    for (auto& item : model->named_parameters()) item.value().set_requires_grad(true);
    at::manual_seed(12);
    expect_equal_training(serial, model, {{columns}, {columns}}, at::kDouble);
  }
  // Ranks that unfreeze differently.
  DistributedAFNO model(small().spatial_group("spatial_parallel"));
  for (auto& item : model->named_parameters()) {
    item.value().set_requires_grad(item.key() == "head.weight");
  }
  const Tensor x = columns(at::randn({2, 4, 8, 12})).contiguous();
  model(x).sum().backward();
  if (world.rank == 0) model->named_parameters()["pos_embed"].set_requires_grad(true);
  try {
    model(x);
    ADD_FAILURE() << "no error";
  } catch (const c10::ValueError& error) {
    const std::string said = error.what_without_backtrace();
    EXPECT_NE(said.find("rank 0 called mark_module_as_shared"), std::string::npos) << said;
  }
});

TEST(DistributedAfnoTest, ParametersThatAreUnfrozenLaterHaveSums) {
  for (const int size : {2, 4}) run_with_model_parallel("afno_unfreezes", size, 0);
}

const bool kDrops = register_rank_function("afno_drops", [] {
  const JoinedWorld world;
  AFNO serial = serial_of(small_serial().drop_rate(0.3));
  serial->to(at::kDouble);
  const auto options = DistributedAFNONetOptions()
                           .inp_shape({8, 12})
                           .patch_size({2, 2})
                           .in_chans(4)
                           .out_chans(3)
                           .embed_dim(16)
                           .depth(2)
                           .num_blocks(4);
  at::manual_seed(11);
  DistributedAFNONet net(DistributedAFNONetOptions(options).drop_rate(0.3));
  net->to(at::kDouble);
  const Tensor x = at::randn({4, 4, 8, 12}, at::kDouble);
  at::manual_seed(5);
  const Tensor wanted = serial(x);
  at::manual_seed(5);
  EXPECT_LT(relative_l2(net(x), wanted), 1e-12);
  // A sample without the last block is one of a shorter network.
  at::manual_seed(11);
  DistributedAFNONet paths(DistributedAFNONetOptions(options).drop_path_rate(1));
  at::manual_seed(11);
  DistributedAFNONet all(options);
  const Tensor y = paths(x.to(at::kFloat));
  EXPECT_FALSE(at::allclose(y, all(x.to(at::kFloat))));
  paths->eval();
  EXPECT_TRUE(at::equal(paths(x.to(at::kFloat)), all(x.to(at::kFloat))));
});

TEST(DistributedAfnoTest, RanksSeededAlikeDropWhatAfnoDrops) {
  run_with_model_parallel("afno_drops", 2, 2);
}

// Loads what the last world has saved, goes on for three steps, and compares with one rank that has
// done them all.
const bool kCheckpoint = register_rank_function("afno_checkpoint", [] {
  const JoinedWorld world;
  const int last = std::stoi(variable("TEST_LAST_STEP", "0"));
  at::manual_seed(11);
  DistributedAFNO model(small());
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(1e-3));
  const auto train = [](auto& network, torch::optim::Adam& optimizer, int from, int to) {
    for (int step = from; step < to; ++step) {
      const Tensor x = at::arange(4 * 8 * 12, at::kFloat).view({1, 4, 8, 12}).sin() * (step + 1);
      optimizer.zero_grad();
      (network(x) - 1).square().sum().backward();
      optimizer.step();
    }
  };
  CheckpointDirectory checkpoints(variable("TEST_DIRECTORY", ""), {});
  const auto progress = checkpoints.load(*model, adam);
  const int first = progress ? static_cast<int>(progress->step) : 0;
  EXPECT_EQ(first, last - 3);
  train(model, adam, first, last);
  checkpoints.save(*model, adam, {.step = last});

  AFNO serial = serial_of(small_serial());
  torch::optim::Adam serial_adam(serial->parameters(), torch::optim::AdamOptions(1e-3));
  train(serial, serial_adam, 0, last);
  const Whole whole = wholes_of(*model);
  const auto parameters = model->named_parameters();
  for (const auto& item : serial->named_parameters()) {
    EXPECT_LT(relative_l2(whole(item.key(), parameters[item.key()]), item.value()), 1e-5)
        << item.key();
  }
});

TEST(DistributedAfnoTest, AnyNumberOfRanksGoesOnWithTheCheckpointsOfAnyOther) {
  const std::string directory = testing::TempDir() + "/afno_checkpoints";
  int last = 0;
  for (const int size : {2, 4, 1}) {
    std::vector<Variables> ranks = env_ranks(size);
    last += 3;
    for (Variables& rank : ranks) {
      rank["MODEL_PARALLEL_SIZE"] = std::to_string(size);
      rank["TEST_DIRECTORY"] = directory;
      rank["TEST_LAST_STEP"] = std::to_string(last);
    }
    SCOPED_TRACE("world of " + std::to_string(size));
    expect_success(run_ranks("afno_checkpoint", ranks));
  }
}

// Data-parallel over models whose channels, or whose field, are split: gradients are those of the
// mean over the data-parallel ranks' samples.
const bool kDataParallel = register_rank_function("afno_data_parallel", [] {
  const JoinedWorld world;
  const std::string axis = variable("TEST_AXIS", "");
  world.manager.initialize_mesh({2, 2}, {"data_parallel", axis});
  const bool is_spatial = axis != kModel;
  if (is_spatial) DistributedManager::create_process_subgroup(kModel, 1);
  AFNO serial = serial_of(small_serial());
  serial->to(at::kDouble);
  at::manual_seed(11);
  auto options = small();
  if (is_spatial) options.spatial_group(axis);
  DistributedAFNO network(options);
  network->to(at::kDouble);
  at::manual_seed(5);
  const Tensor x = at::randn({2, 4, 8, 12}, at::kDouble);
  const Tensor target = at::randn({2, 3, 8, 12}, at::kDouble);
  DistributedDataParallelOptions parallel;
  parallel.process_group = world.manager.group("data_parallel");
  DistributedDataParallel model(network, parallel);
  std::vector<Part> own = {{.dim = 0, .group = "data_parallel"}};
  if (is_spatial) own.push_back({.dim = 3, .group = "spatial_parallel", .unit = 2});
  for (int pass = 0; pass < 2; ++pass) {
    (serial(x) - target).square().sum().backward();
    (model(part_of(x, own).contiguous()) - part_of(target, own)).square().sum().backward();
  }
  const Whole whole = wholes_of(*network);
  const auto parameters = network->named_parameters();
  for (const auto& item : serial->named_parameters()) {
    const Tensor mean = item.value().grad() / 2;
    EXPECT_LT(relative_l2(whole(item.key(), parameters[item.key()].grad()), mean), 1e-11)
        << item.key();
  }
});

TEST(DistributedAfnoTest, IsTrainedDataParallelToo) {
  for (const char* axis : {kModel, "spatial_parallel"}) {
    SCOPED_TRACE(axis);
    std::vector<Variables> ranks = env_ranks(4);
    for (Variables& rank : ranks) rank["TEST_AXIS"] = axis;
    expect_success(run_ranks("afno_data_parallel", ranks));
  }
}

// A layer in a group against itself in a group of one rank: outputs and gradients.
template <typename Layer, typename Options>
void expect_equal_layer(const Options& options, at::IntArrayRef shape, int64_t channel_dim) {
  const auto make = [&](const Options& own) {
    at::manual_seed(2);
    Layer layer(own);
    layer->to(at::kDouble);
    return layer;
  };
  Layer alone = make(Options(options).group("alone"));
  for (const bool input_is_parallel : {false, true}) {
    for (const bool output_is_parallel : {false, true}) {
      Layer layer = make(Options(options)
                             .input_is_matmul_parallel(input_is_parallel)
                             .output_is_matmul_parallel(output_is_parallel));
      const Part in{.dim = input_is_parallel ? 1 : -1};
      const Part out{.dim = output_is_parallel ? channel_dim : -1};
      const Tensor x = at::randn(shape, at::kDouble).requires_grad_();
      alone->zero_grad();
      const Tensor y = alone(x);
      const Tensor cotangent = at::randn(y.sizes(), at::kDouble);
      y.backward(cotangent);
      const Tensor x_part = in(x.detach()).clone().requires_grad_();
      const Tensor y_part = layer(x_part);
      y_part.backward(out(cotangent).contiguous());
      EXPECT_LT(relative_l2(y_part, out(y)), 1e-12);
      EXPECT_LT(relative_l2(x_part.grad(), in(x.grad())), 1e-12);
      const Whole whole = wholes_of(*layer);
      for (const auto& item : alone->named_parameters()) {
        const Tensor piece = layer->named_parameters()[item.key()];
        EXPECT_LT(relative_l2(whole(item.key(), piece.grad()), item.value().grad()), 1e-12)
            << item.key() << input_is_parallel << output_is_parallel;
      }
    }
  }
}

const bool kLayers = register_rank_function("afno_layers", [] {
  const JoinedWorld world;
  DistributedManager::create_process_subgroup("alone", 1);
  // 6 and 7 do not divide by 4: pieces are unequal.
  expect_equal_layer<DistributedMLP>(
      DistributedMLPOptions(6).hidden_features(8).out_features(7).act_layer("tanh"), {2, 6, 3, 5},
      1);
  expect_equal_layer<DistributedPatchEmbed>(
      DistributedPatchEmbedOptions().inp_shape({4, 6}).patch_size({2, 3}).in_chans(4).embed_dim(8),
      {2, 4, 4, 6}, 1);
  expect_equal_layer<DistributedAFNO2D>(DistributedAFNO2DOptions(8)
                                            .num_blocks(4)
                                            .sparsity_threshold(0.001)
                                            .hidden_size_factor(2)
                                            .hard_thresholding_fraction(0.7),
                                        {2, 8, 5, 6}, 1);
});

TEST(DistributedAfnoTest, LayersEqualThemselvesOnOneRank) {
  for (const int size : {2, 4}) run_with_model_parallel("afno_layers", size, size);
}

template <typename Error = c10::ValueError>
void expect_typed(const std::function<void()>& call, const char* part) {
  expect_error_on_all_ranks(call, part);
  EXPECT_THROW(call(), Error);
}

const bool kWithoutGroup = register_rank_function("afno_without_group", [] {
  const JoinedWorld world;
  const char* sentence =
      "Distributed AFNO needs to have model parallel group created first. Check the "
      "MODEL_PARALLEL_SIZE environment variable";
  expect_typed<UndefinedGroupError>([] { DistributedAFNO model(small()); }, sentence);
  expect_typed<UndefinedGroupError>(
      [] { DistributedAFNO model(small().channel_parallel_inputs(true)); }, sentence);
  expect_typed<UndefinedGroupError>([] { DistributedAFNONet net; }, sentence);
  expect_typed<UndefinedGroupError>([] { DistributedMLP mlp(DistributedMLPOptions(4)); }, sentence);
  expect_typed<UndefinedGroupError>([] { DistributedPatchEmbed embed; }, sentence);
  expect_typed<UndefinedGroupError>([] { DistributedAFNO2D filter(DistributedAFNO2DOptions(8)); },
                                    sentence);
  DistributedManager::create_process_subgroup(kModel, 1);
  expect_typed<UndefinedGroupError>(
      [] { DistributedAFNO model(small().spatial_group("spatial_parallel")); }, "spatial_parallel");
});

TEST(DistributedAfnoTest, WithoutItsGroupEveryRankSaysWhatToSet) {
  run_with_model_parallel("afno_without_group", 2, 0);
}

// A rank alone has every group.
const bool kAloneWithoutGroup = register_rank_function("afno_alone_without_group", [] {
  const JoinedWorld world;
  DistributedAFNO model(small());
  EXPECT_EQ(DistributedManager::get().group_size(kModel), 1);
});

TEST(DistributedAfnoTest, ARankAloneNeedsNoGroup) {
  run_with_model_parallel("afno_alone_without_group", 1, 0);
}

const bool kWrong = register_rank_function("afno_wrong", [] {
  const JoinedWorld world;
  const bool odd = world.rank == 1;
  const auto afno = [](const DistributedAFNOOptions& options) {
    return [options] { DistributedAFNO model(options); };
  };
  const auto layer = [](const auto& options, auto make) {
    return [options, make] { make(options); };
  };
  expect_typed(afno(DistributedAFNOOptions({8, 12}, 3).channel_parallel_inputs(true)),
               "Error, in_channels needs to be divisible by model_parallel size: 3 and 2");
  expect_typed(afno(small().num_blocks(1)),
               "Error, num_blocks needs to be divisible by matmul_parallel_size: 1 and 2");
  expect_typed(afno(small().embed_dim(5)), "Error, the embed_dim needs to be divisible by");
  expect_typed(afno(small().embed_dim(6)), "hidden_size 6 should be divisible by num_blocks 4");
  expect_typed(afno(small().patch_size(5)), "should be divisible by patch_size [5, 5]");
  expect_typed(layer(DistributedMLPOptions(3), [](auto o) { DistributedMLP mlp(o); }),
               "Error, hidden_features needs to be divisible by matmul_parallel_size: 3 and 2");
  expect_typed(layer(DistributedPatchEmbedOptions().input_is_matmul_parallel(true),
                     [](auto o) { DistributedPatchEmbed embed(o); }),
               "Error, the in_chans needs to be divisible by matmul_parallel_size: 3 and 2");
  expect_typed(
      layer(DistributedAFNO2DOptions(9).num_blocks(3), [](auto o) { DistributedAFNO2D filter(o); }),
      "Error, num_blocks needs to be divisible by matmul_parallel_size: 3 and 2");
  // On one rank alone.
  expect_typed([&] { DistributedAFNO model(odd ? small().num_blocks(3) : small()); },
               "on rank 1: hidden_size 16 should be divisible by num_blocks 3");
  expect_typed([&] { DistributedAFNO model(odd ? small().depth(3) : small()); },
               "options differ between ranks");
  DistributedAFNO model(small());
  const Tensor x = at::randn({1, 4, 8, 12});
  expect_typed([&] { model(odd ? x.narrow(3, 0, 8) : x); },
               "Expected input shape (B, 4, 8, 12), got [1, 4, 8, 8]");
  expect_typed([&] { model(x.narrow(1, 0, 2)); }, "Expected input shape (B, 4, 8, 12)");
  expect_typed([&] { model(odd ? Tensor() : x); }, "undefined");
  expect_typed([&] { model(odd ? x.to(at::kDouble) : x); }, "the parameters are Float");
  expect_typed([&] { model(odd ? at::cat({x, x}) : x); }, "disagree");
  DistributedMLP mlp(DistributedMLPOptions(4));
  expect_typed([&] { mlp(odd ? x.narrow(1, 0, 3) : x); }, "expected an input of shape");
  EXPECT_EQ(model(x).sizes(), (at::IntArrayRef{1, 3, 8, 12}));
});

const bool kWrongOnAMesh = register_rank_function("afno_wrong_on_a_mesh", [] {
  const JoinedWorld world;
  world.manager.initialize_mesh({2, 2}, {"spatial_parallel", kModel});
  const bool odd = world.rank == 3;
  EXPECT_THROW(DistributedAFNO(small().spatial_group("spatial_parallel").depth(odd ? 3 : 2)),
               c10::ValueError);
  EXPECT_THROW(DistributedAFNO(small().spatial_group("spatial_parallel").depth(odd ? 0 : 2)),
               c10::ValueError);
  DistributedAFNO model(small().spatial_group("spatial_parallel"));
  const Tensor x = at::randn({1, 4, 8, 6});
  EXPECT_THROW(model(odd ? at::cat({x, x}) : x), c10::ValueError);
  EXPECT_THROW(model(odd ? at::cat({x, x}, 3) : x), c10::ValueError);
  EXPECT_EQ(model(x).sizes(), (at::IntArrayRef{1, 3, 8, 6}));
});

TEST(DistributedAfnoTest, WrongUseIsATypedErrorOnEveryRank) {
  run_with_model_parallel("afno_wrong", 2, 2);
  run_with_model_parallel("afno_wrong_on_a_mesh", 4, 0);
}

TEST(DistributedAfnoTest, DefaultsAreTheSpecifications) {
  const DistributedAFNOOptions options({64, 64}, 2);
  EXPECT_EQ(options.out_channels(), 0);
  EXPECT_EQ(options.patch_size(), 16);
  EXPECT_EQ(options.embed_dim(), 256);
  EXPECT_EQ(options.depth(), 4);
  EXPECT_EQ(options.num_blocks(), 4);
  EXPECT_FALSE(options.channel_parallel_inputs());
  EXPECT_FALSE(options.channel_parallel_outputs());
  EXPECT_TAKES_INTEGERS_ONLY(DistributedAFNOOptions({8, 8}, value));
  EXPECT_TAKES_INTEGERS_ONLY(DistributedAFNOOptions({8, 8}, 1).out_channels(value));
  EXPECT_TAKES_BOOL_ONLY(DistributedAFNOOptions({8, 8}, 1).channel_parallel_inputs(value));
  EXPECT_TAKES_BOOL_ONLY(DistributedAFNOOptions({8, 8}, 1).channel_parallel_outputs(value));
}

TEST(DistributedAfnoTest, LayersTakeEachForItself) {
  using Embed = DistributedPatchEmbedOptions;
  using Net = DistributedAFNONetOptions;
  EXPECT_TAKES_INTEGERS_ONLY(DistributedMLPOptions(4).hidden_features(value));
  EXPECT_TAKES_INTEGERS_ONLY(DistributedMLPOptions(4).out_features(value));
  EXPECT_TAKES_BOOL_ONLY(DistributedMLPOptions(4).input_is_matmul_parallel(value));
  EXPECT_TAKES_BOOL_ONLY(DistributedMLPOptions(4).output_is_matmul_parallel(value));
  EXPECT_TAKES_INTEGERS_ONLY(Embed().in_chans(value));
  EXPECT_TAKES_INTEGERS_ONLY(Embed().embed_dim(value));
  EXPECT_TAKES_BOOL_ONLY(Embed().input_is_matmul_parallel(value));
  EXPECT_TAKES_BOOL_ONLY(Embed().output_is_matmul_parallel(value));
  EXPECT_TAKES_INTEGERS_ONLY(DistributedAFNO2DOptions(4).num_blocks(value));
  EXPECT_TAKES_INTEGERS_ONLY(DistributedAFNO2DOptions(4).hidden_size_factor(value));
  EXPECT_TAKES_BOOL_ONLY(DistributedAFNO2DOptions(4).input_is_matmul_parallel(value));
  EXPECT_TAKES_BOOL_ONLY(DistributedAFNO2DOptions(4).output_is_matmul_parallel(value));
  EXPECT_TAKES_INTEGERS_ONLY(Net().in_chans(value));
  EXPECT_TAKES_INTEGERS_ONLY(Net().num_blocks(value));
  EXPECT_TAKES_BOOL_ONLY(Net().input_is_matmul_parallel(value));
  EXPECT_TAKES_BOOL_ONLY(Net().output_is_matmul_parallel(value));
  EXPECT_TAKES_INTEGERS_ONLY(given::module.register_shard(given::name, given::whole, value));
}

}  // namespace
}  // namespace meshrun
