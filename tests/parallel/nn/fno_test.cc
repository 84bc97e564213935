#include "parallel/nn/fno.h"

#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/base/split.h"
#include "parallel/nn/autocast.h"
#include "parallel/nn/distributed_data_parallel.h"
#include "parallel/nn/shared_module.h"
#include "parallel/nn/zero_redundancy_optimizer.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/parameters.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {

// Declared to be named in calls that are never made.
namespace given {
extern const ListArgument<IntArgument> modes;
extern const std::optional<GroupArgument> group;
}  // namespace given

namespace {

using at::Tensor;
using Sizes = std::vector<int64_t>;

FNOOptions small_options(bool is_3d) {
  FNOOptions options;
  options.in_channels(2).out_channels(1).width(6).num_layers(2).projection_channels(8).padding(2);
  options.modes(is_3d ? std::vector<IntArgument>{2, 3, 2} : std::vector<IntArgument>{3, 4});
  return options;
}

Sizes field_shape(bool is_3d) { return is_3d ? Sizes{4, 2, 5, 7, 4} : Sizes{4, 2, 9, 11}; }

double relative(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  const double norm = at::linalg_vector_norm(b).item<double>();
  return at::linalg_vector_norm(a - b).item<double>() / (norm > 0 ? norm : 1);
}

// Unsharded parameters, or what else is sharded alike, by name.
std::map<std::string, Tensor> whole(const torch::nn::Module& module, bool gradients) {
  const auto shards = parameter_shards(module);
  std::map<std::string, Tensor> tensors;
  for (const auto& item : module.named_parameters()) {
    const Tensor tensor = gradients ? item.value().grad() : item.value().detach();
    const auto shard = shards.find(item.key());
    tensors[item.key()] = shard == shards.end() ? tensor.clone() : unsharded(tensor, shard->second);
  }
  return tensors;
}

// Samples are split along `dp`, columns along `spatial`.
struct Trained {
  Tensor output;
  std::map<std::string, Tensor> gradients;
  std::map<std::string, Tensor> parameters;
};

Trained train(bool is_3d, const std::optional<std::string>& spatial,
              const std::optional<std::string>& dp, const Sizes& columns) {
  auto& manager = DistributedManager::get();
  at::manual_seed(3);
  FNOOptions options = small_options(is_3d);
  if (spatial) options.group(GroupArgument(*spatial));
  FNO network(options);
  // In three dimensions some parts of the weights have no gradient but rounding, which Adam makes
  // steps of; in float64 it makes none.
  const at::ScalarType dtype = is_3d ? at::kDouble : at::kFloat;
  network->to(dtype);
  at::manual_seed(4);
  const Sizes shape = field_shape(is_3d);
  Tensor x = at::randn(shape, dtype);
  Tensor target = at::randn({shape[0], 1}, dtype).view({shape[0], 1, 1, 1});
  if (is_3d) target = target.unsqueeze(-1);
  if (dp) {
    const SplitRange own = split_range(shape[0], manager.group_size(*dp), manager.group_rank(*dp));
    x = x.narrow(0, own.begin, own.size());
    target = target.narrow(0, own.begin, own.size());
  }
  if (spatial) {
    int64_t begin = 0;
    const int rank = manager.group_rank(*spatial);
    for (int r = 0; r < rank; ++r) begin += columns[static_cast<size_t>(r)];
    x = x.narrow(3, begin, columns[static_cast<size_t>(rank)]);
  }
  torch::optim::Adam optimizer(network->parameters(), 1e-3);
  Trained trained;
  const auto loss_of = [&](const Tensor& y) {
    // DistributedDataParallel averages, so a rank's loss counts as many times as there are ranks.
    return (y - target).square().sum() * (dp ? manager.group_size(*dp) : 1);
  };
  const auto step = [&](auto& model) {
    for (int i = 0; i < 10; ++i) {
      optimizer.zero_grad();
      const Tensor y = model(x);
      loss_of(y).backward();
      if (i == 0) {
        trained.output = y.detach();
        trained.gradients = whole(*network, true);
      }
      optimizer.step();
    }
  };
  if (dp) {
    DistributedDataParallel model(network, {.process_group = manager.group(*dp)});
    step(model);
  } else {
    step(network);
  }
  trained.parameters = whole(*network, false);
  return trained;
}

void expect_equal(const Trained& trained, const Trained& serial) {
  for (const auto& [name, gradient] : serial.gradients) {
    const double limit = gradient.scalar_type() == at::kDouble ? 1e-10 : 1e-5;
    EXPECT_LE(relative(trained.gradients.at(name), gradient), limit) << name;
  }
  for (const auto& [name, parameter] : serial.parameters) {
    EXPECT_LE(relative(trained.parameters.at(name), parameter), 1e-5) << name;
  }
}

const bool kSpatial = register_rank_function("fno_spatial", [] {
  const JoinedWorld world;
  for (const bool is_3d : {false, true}) {
    SCOPED_TRACE(is_3d ? "3-D" : "2-D");
    const Trained serial = train(is_3d, std::nullopt, std::nullopt, {});
    const int64_t extent = field_shape(is_3d)[3];
    Sizes uneven(static_cast<size_t>(world.size), 1);
    uneven[0] = extent - world.size + 1;
    if (world.size > 2) {
      uneven[0] += 1;
      uneven[1] = 0;
    }
    for (const Sizes& columns : {compute_split_shapes(extent, world.size), uneven}) {
      SCOPED_TRACE(c10::str("columns ", at::IntArrayRef(columns)));
      const Trained trained = train(is_3d, "world", std::nullopt, columns);
      int64_t begin = 0;
      for (int r = 0; r < world.rank; ++r) begin += columns[static_cast<size_t>(r)];
      const Tensor own = serial.output.narrow(3, begin, columns[static_cast<size_t>(world.rank)]);
      EXPECT_LE(relative(trained.output, own), 1e-5);
      expect_equal(trained, serial);
    }
  }
});

TEST(FNOTest, OnAnyNumberOfRanksIsTheUnshardedNetwork) {
  run_in_worlds("fno_spatial", {1, 2, 3, 4}, {"ucx"});
}

const bool kMesh = register_rank_function("fno_mesh", [] {
  const JoinedWorld world;
  world.manager.initialize_mesh({world.size / 2, 2}, {"dp", "spatial"});
  const Trained serial = train(false, std::nullopt, std::nullopt, {});
  expect_equal(train(false, "spatial", "dp", {5, 6}), serial);
});

TEST(FNOTest, TrainsOnAMeshOfDataAndSpaceAsOnOneRank) {
  run_in_worlds("fno_mesh", {2, 4}, {"ucx"});
}

// Each takes the group's ranks to have equal parameters.
const bool kPieces = register_rank_function("fno_pieces", [] {
  const JoinedWorld world;
  std::string spatial = "world";
  if (world.size == 4) {
    world.manager.initialize_mesh({2, 2}, {"dp", "spatial"});
    spatial = "spatial";
  }
  at::manual_seed(3);
  FNO network(small_options(false).group(GroupArgument(spatial)));
  network->to(at::kDouble);  // the parameters are the same tensors
  const Tensor before = network->named_parameters()["spectral.0.weight"].clone();
  const auto refuses = [&](const std::function<void()>& call) {
    expect_error_on_all_ranks(call, "is held in pieces by");
  };
  refuses([&] { DistributedDataParallel model(network); });
  refuses([&] { ZeroRedundancyOptimizer(network->parameters(), torch::optim::AdamOptions(1e-3)); });
  // Over the holders of the pieces themselves the network is marked already. Pieces are left out
  // there, so a mark anew gives the same gradients.
  const auto gradients_of = [](FNO& model) {
    const Tensor x = at::arange(4 * 2 * 9 * 6, at::kDouble).view({4, 2, 9, 6}) / 100;
    model->forward(x).square().sum().backward();
    std::vector<Tensor> gradients;
    for (const Tensor& parameter : model->parameters()) gradients.push_back(parameter.grad());
    return gradients;
  };
  at::manual_seed(3);
  FNO untouched(small_options(false).group(GroupArgument(spatial)));
  untouched->to(at::kDouble);
  expect_error_on_all_ranks([&] { mark_module_as_shared(*network, spatial); },
                            "is marked as shared already, over the ranks of this group");
  unmark_module_as_shared(*network);
  mark_module_as_shared(*network, spatial);
  const std::vector<Tensor> wanted = gradients_of(untouched), actual = gradients_of(network);
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_TRUE(at::equal(actual[i], wanted[i])) << i;
  if (world.size == 4) {
    refuses([&] { mark_module_as_shared(*network, "world"); });  // before "marked already"
    refuses([&] { mark_module_as_shared(*network->named_modules()["spectral"], "world"); });
    expect_error_on_all_ranks([&] { mark_module_as_shared(*network, "dp"); },
                              "is marked as shared already, over another group, of 2 ranks");
    expect_error_on_all_ranks([&] { DistributedDataParallel model(network); }, "[0, 1, 2, 3]");
    // One rank of each set of pieces.
    ZeroRedundancyOptimizer(network->parameters(), torch::optim::AdamOptions(1e-3),
                            {.group = "dp"});
    mark_module_as_shared(*network->named_modules()["spectral.0"], "dp");
  }
  EXPECT_TRUE(at::equal(network->named_parameters()["spectral.0.weight"], before));
});

TEST(FNOTest, WrappersOverRanksThatHoldPiecesAreAnErrorOnAll) {
  run_in_worlds("fno_pieces", {2, 4}, {"ucx"});
  run_in_worlds("fno_pieces", {4}, {"gloo"});
}

// A tensor that takes a dead piece's place is not one.
const bool kAnnounced = register_rank_function("fno_announced", [] {
  const JoinedWorld world;
  for (int i = 0; i < 20; ++i) {
    FNO network(small_options(false).group(GroupArgument("world")));
    const Tensor piece = network->named_parameters()["spectral.0.weight"];
    ASSERT_NE(announced_shard(piece), nullptr);
    EXPECT_EQ(announced_shard(piece)->global_shape, (Sizes{6, 6, 3, 8, 2}));
    EXPECT_EQ(announced_shard(network->named_parameters()["lifting.weight"]), nullptr);
    EXPECT_EQ(announced_shard(piece.clone()), nullptr);
    network = FNO(small_options(false));
    for (const Tensor& parameter : network->parameters()) {
      EXPECT_EQ(announced_shard(parameter), nullptr);
    }
  }
});

TEST(FNOTest, APieceIsKnownByItsTensorAsLongAsThatLives) {
  run_in_worlds("fno_announced", {2}, {"ucx"});
}

const bool kSeeds = register_rank_function("fno_seeds", [] {
  const JoinedWorld world;
  const Tensor x = at::ones({1, 2, 9, 4});
  at::manual_seed(3 + world.rank);
  FNO network(small_options(false).group(GroupArgument("world")));
  const auto backward = [&] { network(x).sum().backward(); };
  expect_error_on_all_ranks(backward, "different values of parameter \"lifting.weight\"");
  EXPECT_FALSE(network->named_parameters()["lifting.weight"].grad().defined());
  expect_error_on_all_ranks(backward, "different values of parameter");
  // The same values on all ranks make good for other seeds.
  for (const auto& item : network->named_parameters()) {
    if (parameter_shards(*network).count(item.key()) > 0) continue;
    const at::NoGradGuard no_grad;
    item.value().fill_(0.5);
  }
  backward();
  EXPECT_TRUE(network->named_parameters()["lifting.weight"].grad().defined());
});

TEST(FNOTest, RanksThatWereSeededDifferentlyAreAnErrorOnAll) {
  run_in_worlds("fno_seeds", {2, 4}, {"ucx"});
}

// The last rank has 5 columns of 10 and of 11.
const bool kWidths = register_rank_function("fno_widths", [] {
  const JoinedWorld world;
  at::manual_seed(3);
  FNO serial(small_options(false));
  at::manual_seed(3);
  FNO network(small_options(false).group(GroupArgument("world")));
  for (const int64_t width : {10, 11, 10}) {
    SCOPED_TRACE(width);
    at::manual_seed(5);
    const Tensor x = at::randn({2, 2, 9, width});
    const Sizes sizes = compute_split_shapes(width, world.size);
    const SplitRange own = split_range(width, world.size, world.rank);
    const Tensor piece = x.narrow(3, own.begin, own.size());
    const Tensor expected = serial(x).narrow(3, own.begin, own.size());
    EXPECT_LE(relative(network(piece), expected), 1e-5);
    EXPECT_LE(relative(network(piece, sizes), expected), 1e-5);
  }
});

TEST(FNOTest, TakesAFieldOfAnotherWidthWhereOnlySomeRanksHaveMore) {
  run_in_worlds("fno_widths", {2}, {"ucx", "gloo"});
}

const bool kWrong = register_rank_function("fno_wrong", [] {
  const JoinedWorld world;
  FNO network(small_options(false).group(GroupArgument("world")));
  const bool odd = world.rank == 1;
  const Tensor good = at::ones({1, 2, 9, 5});
  EXPECT_THROW(network(odd ? at::ones({1, 3, 9, 5}) : good), c10::ValueError);
  EXPECT_THROW(network(odd ? Tensor() : good), c10::ValueError);
  EXPECT_THROW(network(good, odd ? Sizes{5, 6} : Sizes{5, 5}), c10::ValueError);
});

TEST(FNOTest, AWrongInputOnOneRankIsAnErrorOnAll) { run_in_worlds("fno_wrong", {2}, {"ucx"}); }

TEST(FNOTest, SixteenBitFieldsAreTransformedInFloat32) {
  for (const bool is_3d : {false, true}) {
    SCOPED_TRACE(is_3d ? "3-D" : "2-D");
    at::manual_seed(3);
    FNO network(small_options(is_3d));
    const Tensor x = at::randn(field_shape(is_3d));
    const Tensor exact = network(x).detach();
    const Tensor cast = in_bfloat16(c10::kCPU, [&] { return network(x); });
    EXPECT_EQ(cast.scalar_type(), at::kFloat);
    EXPECT_LE(relative(cast.detach(), exact), 0.05);
    network->to(at::kBFloat16);
    const Tensor rounded = network(x.to(at::kBFloat16));
    EXPECT_EQ(rounded.scalar_type(), at::kBFloat16);
    EXPECT_LE(relative(rounded.detach().to(at::kFloat), exact), 0.1);
    rounded.sum().backward();
    for (const auto& item : network->named_parameters()) {
      EXPECT_EQ(item.value().grad().scalar_type(), at::kBFloat16) << item.key();
    }
  }
}

TEST(FNOTest, RefusesOptionsThatDoNotFit) {
  FNOOptions options;
  options.modes({4});
  EXPECT_THROW(FNO{options}, c10::ValueError);
  FNO network(FNOOptions().modes({2, 2}).width(4));
  EXPECT_THROW(network(at::ones({1, 3, 8, 8})), c10::ValueError);
  EXPECT_EQ(network(at::ones({1, 1, 8, 8})).sizes(), (Sizes{1, 1, 8, 8}));
}

TEST(FNOTest, OptionsTakeEachForItself) {
  using namespace given;
  EXPECT_TAKES_INTEGERS_ONLY(FNOOptions().in_channels(value));
  EXPECT_TAKES_INTEGERS_ONLY(FNOOptions().out_channels(value));
  EXPECT_TAKES_INTEGERS_ONLY(FNOOptions().width(value));
  EXPECT_TAKES_INTEGERS_ONLY(FNOOptions().num_layers(value));
  EXPECT_TAKES_INTEGERS_ONLY(FNOOptions().modes({value, 4}));
  EXPECT_TAKES_INTEGERS_ONLY(FNOOptions().projection_channels(value));
  EXPECT_TAKES_INTEGERS_ONLY(FNOOptions().padding(value));
  EXPECT_TAKES_BOOL_ONLY(FNOOptions().coordinates(value));
  EXPECT_TAKES_INTEGERS_ONLY(PointwiseImpl(value, 2));
  EXPECT_TAKES_INTEGERS_ONLY(PointwiseImpl(2, value));
  EXPECT_TAKES_INTEGERS_ONLY(SpectralConvolutionImpl(value, 2, modes, group));
  EXPECT_TAKES_INTEGERS_ONLY(SpectralConvolutionImpl(2, value, modes, group));
}

}  // namespace
}  // namespace meshrun
