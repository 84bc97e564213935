// Trainings whose state lies in pieces on several ranks, and that lose ranks: they go on from
// snapshots, and the result is that of one process.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/base/digest.h"
#include "parallel/base/sharded_key.h"
#include "parallel/checkpoint/snapshot_keepers.h"
#include "parallel/elastic/elastic_state.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/fno.h"
#include "parallel/nn/sharded_parameters.h"
#include "parallel/nn/zero_redundancy_optimizer.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/elastic/elastic_ranks.h"

namespace meshrun {
namespace {

using at::Tensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::optim::AdamOptions;

constexpr int64_t kTrained = 30;
constexpr int64_t kEvery = 4;
constexpr int64_t kLostAt = 18;  // two steps after a snapshot

// A function of the name and the step: the same whole tensor on any rank of any world.
Tensor drawn(const std::string& name, int64_t step, at::IntArrayRef shape) {
  at::Generator generator =
      at::detail::createCPUGenerator(digest_of(name) ^ static_cast<uint64_t>(step + 1));
  return at::randn(shape, generator);
}

// A training in pieces, over all ranks of the world.
class InPieces {
 public:
  virtual ~InPieces() = default;
  virtual torch::nn::Module& module() = 0;
  virtual torch::optim::Optimizer& optimizer() = 0;
  // This rank's elements of a whole tensor like the parameter.
  virtual Tensor own(const std::string& /*name*/, const Tensor& whole) { return whole; }
  virtual std::vector<int64_t> whole_shape(const std::string& name) = 0;

  virtual void set_gradient(Tensor& parameter, const Tensor& own) {
    parameter.mutable_grad() = own.clone();
  }
  void set_gradients(int64_t step) {
    for (auto& item : module().named_parameters()) {
      set_gradient(item.value(), own(item.key(), drawn(item.key(), step, whole_shape(item.key()))));
    }
  }
};

class Zero : public InPieces {
 public:
  Zero() {
    const at::NoGradGuard no_grad;
    for (auto& item : network_->named_parameters()) {
      item.value().copy_(drawn(item.key(), -1, item.value().sizes()));
    }
    optimizer_ = std::make_unique<ZeroRedundancyOptimizer>(
        network_->parameters(), AdamOptions(0.01),
        ZeroRedundancyOptions{.gradients_are_reduced = true});
  }
  torch::nn::Module& module() override { return *network_; }
  torch::optim::Optimizer& optimizer() override { return *optimizer_; }
  std::vector<int64_t> whole_shape(const std::string& name) override {
    return network_->named_parameters()[name].sizes().vec();
  }

 private:
  torch::nn::Sequential network_{torch::nn::Linear(5, 7), torch::nn::Linear(7, 3)};
  std::unique_ptr<ZeroRedundancyOptimizer> optimizer_;
};

// An FNO over all ranks with Adam; or, `is_grid`, over the axis "spatial" of a mesh, where ZeRO
// spreads the moments over "dp".
class Fno : public InPieces {
 public:
  explicit Fno(bool is_grid) {
    if (is_grid) {
      DistributedManager& manager = DistributedManager::get();
      const int size = manager.world_size();
      const int64_t pairs = size == 4 ? 2 : 1;
      manager.initialize_mesh({pairs, size / pairs}, {"dp", "spatial"});
    }
    at::manual_seed(3);
    network_ = FNO(FNOOptions().width(4).num_layers(2).modes({5, 3}).projection_channels(6).group(
        is_grid ? GroupArgument("spatial") : GroupArgument()));
    shards_ = parameter_shards(*network_);
    const at::NoGradGuard no_grad;
    for (auto& item : network_->named_parameters()) {
      item.value().copy_(own(item.key(), drawn(item.key(), -1, whole_shape(item.key()))));
    }
    if (is_grid) {
      optimizer_ = std::make_unique<ZeroRedundancyOptimizer>(
          network_->parameters(), AdamOptions(0.01),
          ZeroRedundancyOptions{.group = "dp", .gradients_are_reduced = true});
    } else {
      optimizer_ = std::make_unique<torch::optim::Adam>(network_->parameters(), AdamOptions(0.01));
    }
  }
  torch::nn::Module& module() override { return *network_; }
  torch::optim::Optimizer& optimizer() override { return *optimizer_; }
  Tensor own(const std::string& name, const Tensor& whole) override {
    const auto shard = shards_.find(name);
    return shard == shards_.end() ? whole : shard_of(whole, shard->second);
  }
  std::vector<int64_t> whole_shape(const std::string& name) override {
    const auto shard = shards_.find(name);
    if (shard != shards_.end()) return shard->second.global_shape;
    return network_->named_parameters()[name].sizes().vec();
  }

 private:
  FNO network_ = nullptr;
  std::map<std::string, ParameterShard> shards_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

// Rows, columns and a plain parameter, and a buffer.
class Sharded : public InPieces {
 public:
  struct Network : torch::nn::Module {};

  Sharded() {
    const int world_size = DistributedManager::get().world_size();
    const ShardMesh::Ptr mesh =
        ShardMesh::of(DistributedManager::get().initialize_mesh({world_size}, {"a"}));
    const auto add = [&](const std::string& name, std::vector<int64_t> shape,
                         const Placement& placement) {
      shapes_[name] = shape;
      specs_[name] = make_spec(mesh, ShardLayout::split(mesh->shape(), {placement}, shape));
      const Tensor local = own(name, drawn(name, -1, shape)).clone();
      network_->register_parameter(name, ShardTensor(local, specs_[name], true));
    };
    add("rows", {7, 3}, Shard(0));
    add("columns", {5, 8}, Shard(1));
    add("replicated", {4}, Replicate());
    shapes_["plain"] = {3};
    network_->register_parameter("plain", drawn("plain", -1, {3}));
    network_->register_buffer("count", at::zeros({}));
    optimizer_ = std::make_unique<torch::optim::Adam>(network_->parameters(), AdamOptions(0.01));
  }
  torch::nn::Module& module() override { return *network_; }
  torch::optim::Optimizer& optimizer() override { return *optimizer_; }
  Tensor own(const std::string& name, const Tensor& whole) override {
    const auto spec = specs_.find(name);
    if (spec == specs_.end()) return whole;
    Tensor part = whole;
    for (int64_t d = 0; d < whole.dim(); ++d) {
      const auto at = static_cast<size_t>(d);
      part = part.narrow(d, spec->second->box().offsets[at], spec->second->box().sizes[at]);
    }
    return part;
  }
  std::vector<int64_t> whole_shape(const std::string& name) override { return shapes_[name]; }
  void set_gradient(Tensor& parameter, const Tensor& own) override {
    parameter.mutable_grad() =
        is_sharded(parameter) ? Tensor(ShardTensor(own.clone(), spec_of(parameter))) : own.clone();
  }

 private:
  std::shared_ptr<Network> network_ = std::make_shared<Network>();
  std::map<std::string, std::vector<int64_t>> shapes_;
  std::map<std::string, SpecPtr> specs_;
  std::unique_ptr<torch::optim::Adam> optimizer_;
};

std::unique_ptr<InPieces> make(const std::string& model) {
  if (model == "zero") return std::make_unique<Zero>();
  if (model == "fno") return std::make_unique<Fno>(/*is_grid=*/false);
  if (model == "zero of fno") return std::make_unique<Fno>(/*is_grid=*/true);
  return std::make_unique<Sharded>();
}

double rate(torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups()[0].options().get_lr();
}

void set_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

double rate_after(int64_t steps) { return 0.01 / static_cast<double>(1 + steps % 5); }

void expect_as_in_one_process(InPieces& training) {
  for (const auto& item : training.module().named_parameters()) {
    Tensor whole = drawn(item.key(), -1, training.whole_shape(item.key())).requires_grad_();
    torch::optim::Adam alone({whole}, AdamOptions(0.01));
    for (int64_t step = 0; step < kTrained; ++step) {
      whole.mutable_grad() = drawn(item.key(), step, whole.sizes());
      alone.step();
      set_rate(alone, rate_after(step + 1));
    }
    const Tensor mine = is_sharded(item.value()) ? local_of(item.value()) : item.value();
    EXPECT_TRUE(at::equal(mine, training.own(item.key(), whole))) << item.key();
  }
}

std::string variable(const char* name) { return std::getenv(name); }

// Number of the step that a training which was never disturbed draws.
int64_t nth_drawn(int64_t step) {
  at::Generator generator = at::detail::createCPUGenerator(7);
  int64_t number = 0;
  for (int64_t i = 0; i <= step; ++i) {
    number = at::randint(1'000'000, {1}, generator).item<int64_t>();
  }
  return number;
}

// What the ranks say, one line each.
std::vector<std::string> said;

// Takes kTrained steps in the worlds that come; `before_step` may end this process. Returns where
// this rank has begun in each.
std::vector<int64_t> train(const std::function<void(int64_t step)>& before_step) {
  ElasticOptions options;
  options.log = [](const std::string& line) { said.push_back(line); };
  ElasticContext elastic(options);
  std::vector<int64_t> starts;
  elastic.run([&] {
    DistributedManager& manager = DistributedManager::get();
    const auto training = make(variable("TEST_MODEL"));
    ElasticState state(elastic, training->module(), training->optimizer());
    // A kept value, which counts the steps.
    Tensor count = at::zeros({}, at::kDouble);
    state.keep("count", count);
    state.snapshot_every(kEvery);
    at::manual_seed(7);
    const int64_t first = state.restore().value_or(0);
    starts.push_back(first);
    EXPECT_EQ(count.item<double>(), static_cast<double>(first));
    // The rate of each step is what the one before has set.
    EXPECT_EQ(rate(training->optimizer()), first == 0 ? 0.01 : rate_after(first));
    for (const int64_t step : state.steps(first, kTrained)) {
      before_step(step);
      // All ranks draw alike, and go on to do so.
      EXPECT_EQ(at::randint(1'000'000, {1}).item<int64_t>(), nth_drawn(step));
      training->set_gradients(step);
      // As the collectives of a real step: nobody is ahead of a lost rank.
      manager.world()->barrier()->wait();
      state.update([&] {
        training->optimizer().step();
        set_rate(training->optimizer(), rate_after(step + 1));
        count += 1;
      });
    }
    expect_as_in_one_process(*training);
  });
  return starts;
}

bool has_said(const std::string& part) {
  return std::ranges::any_of(
      said, [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

// TEST_SIZE ranks, of which those in TEST_LOST die at a step. The others go on as TEST_NEXT says.
const bool kPieces = register_rank_function("pieces", [] {
  const bool is_new = number("TEST_GENERATION") == 2;
  const int first_size = number("TEST_SIZE");
  if (is_new) await_second_generation();
  const auto agent = own_agent(is_new ? number("TEST_NEXT_SIZE") : first_size);
  DistributedManager::initialize({.agent = agent});
  const std::string lost = variable("TEST_LOST");
  const std::vector<int64_t> starts = train([&](int64_t step) {
    DistributedManager& manager = DistributedManager::get();
    if (manager.agent()->assignment().generation != 1 || step != kLostAt) return;
    const std::string rank = std::to_string(manager.rank());
    if (lost.find(rank) == std::string::npos) return;
    agent->set("next", variable("TEST_NEXT"));
    agent->set("lost", lost);
    _exit(0);
  });
  const int64_t expected = number("TEST_BEGINS");
  EXPECT_EQ(starts.back(), expected);
  EXPECT_EQ(starts.size(), is_new ? 1u : 2u);
  if (!is_new && agent->assignment().rank == 0) {
    EXPECT_TRUE(has_said("keeps snapshots every 4 steps in memory: at most "));
  }
  if (expected > 0) {
    EXPECT_TRUE(has_said("goes on after step 16, as in the snapshots of all ranks"));
  }
  if (expected == 0 && DistributedManager::get().rank() == 0) {
    EXPECT_TRUE(has_said("the snapshot of step 16 is not whole"));
  }
  DistributedManager::cleanup(true);
});

// A ZeRO training of two ranks, of which rank 1 dies where `loop` says; the other goes on alone.
// Returns the step from which it does, and the first element of what it restores.
std::pair<int64_t, double> goes_on_with(
    int64_t every,
    const std::function<void(ElasticContext&, ElasticState&, Zero&,
                             const std::function<void()>& dies)>& loop,
    bool is_left = false) {
  const auto agent = own_agent(2);
  DistributedManager::initialize({.agent = agent});
  ElasticContext elastic;
  std::optional<int64_t> restored;
  double element = 0;
  elastic.run([&] {
    Zero training;
    ElasticState state(elastic, training.module(), training.optimizer());
    state.snapshot_every(every);
    restored = state.restore();
    element = training.module().parameters()[0].view(-1)[0].item<double>();
    if (DistributedManager::get().world_size() == 1) return;
    loop(elastic, state, training, [&] {
      DistributedManager::get().world()->barrier()->wait();
      if (DistributedManager::get().rank() == 0) {
        while (true) DistributedManager::get().world()->barrier()->wait();
      }
      agent->set("next", "1 0 -1");
      agent->set("lost", "1");
      _exit(0);
    });
    if (!is_left) ADD_FAILURE() << "nobody was lost";
  });
  DistributedManager::cleanup(true);
  return {restored.value_or(-1), element};
}

template <typename... Arguments>
int64_t goes_on_from(Arguments&&... arguments) {
  return goes_on_with(std::forward<Arguments>(arguments)...).first;
}

const bool kLeavesGradients = register_rank_function("accumulates_in_pieces", [] {
  const int64_t from =
      goes_on_from(2, [](ElasticContext&, ElasticState& state, Zero& training, const auto& dies) {
        for (const int64_t step : state.steps(0, 20)) {
          training.set_gradients(step);
          if (step == 10) dies();  // one of three steps is in the gradients
          if (step % 3 == 2) state.update([&] { training.optimizer().step(); });
        }
      });
  EXPECT_EQ(from, 9);
});

TEST(PieceSnapshotsTest, GradientsOfALaterUpdateAreTakenAgain) {
  expect_success(run_generations("accumulates_in_pieces", {{0, 1}, {1, 1}}));
}

const bool kGoesBack = register_rank_function("goes_back_in_pieces", [] {
  const int64_t from =
      goes_on_from(10, [](ElasticContext&, ElasticState& state, Zero& training, const auto& dies) {
        const auto step = [&] {
          training.set_gradients(0);
          state.update([&] { training.optimizer().step(); });
        };
        state.commit(5);
        for (int i = 0; i < 3; ++i) step();
        state.commit(3);  // what was saved then, perhaps
        for (int i = 0; i < 2; ++i) step();
        dies();
      });
  EXPECT_EQ(from, 3);
});

TEST(PieceSnapshotsTest, ACommitOfFewerStepsReplacesTheSnapshot) {
  expect_success(run_generations("goes_back_in_pieces", {{0, 1}, {1, 1}}));
}

const bool kSaysItAnew = register_rank_function("says_it_anew_in_pieces", [] {
  const auto [from, element] =
      goes_on_with(10, [](ElasticContext&, ElasticState& state, Zero& training, const auto& dies) {
        state.commit(0);
        {
          const at::NoGradGuard no_grad;
          training.module().parameters()[0].fill_(3);
        }
        state.commit(0);
        dies();
      });
  EXPECT_EQ(from, 0);
  EXPECT_EQ(element, 3);
});

TEST(PieceSnapshotsTest, ACommitOfTheSameStepsReplacesTheSnapshot) {
  expect_success(run_generations("says_it_anew_in_pieces", {{0, 1}, {1, 1}}));
}

const bool kLongStrides = register_rank_function("long_strides_in_pieces", [] {
  const int64_t from =
      goes_on_from(10, [](ElasticContext&, ElasticState& state, Zero& training, const auto& dies) {
        for (int64_t steps = 0; steps < 36; steps += 7) {
          training.set_gradients(0);
          training.optimizer().step();
          state.commit(steps);
        }
        dies();
      });
  EXPECT_EQ(from, 35);
});

TEST(PieceSnapshotsTest, CommitsOfSeveralStepsAreNotMissed) {
  expect_success(run_generations("long_strides_in_pieces", {{0, 1}, {1, 1}}));
}

// Rank 1 leaves with the others, at a step without a snapshot, and does not come back.
const bool kLeavesTogether = register_rank_function("stands_still_in_pieces", [] {
  const auto agent = own_agent(2);
  if (agent->assignment().rank == 1) agent->set("next", "1 0 -1");
  const int64_t from = goes_on_from(
      100,
      [&](ElasticContext& elastic, ElasticState& state, Zero& training, const auto&) {
        state.commit(0);
        for (int i = 0; i < 13; ++i) {
          training.set_gradients(0);
          state.update([&] { training.optimizer().step(); });
        }
        if (DistributedManager::get().rank() == 1) {
          elastic.at_end([] { ADD_FAILURE() << "it ends before"; });
        }
        try {
          elastic.stand_still(13);
        } catch (...) {
          if (DistributedManager::get().rank() == 1) _exit(0);
          throw;
        }
      },
      /*is_left=*/true);
  EXPECT_EQ(from, 13);
});

TEST(PieceSnapshotsTest, APlannedChangeTakesNoStepAgain) {
  expect_success(run_generations("stands_still_in_pieces", {{0, 1}, {1, 1}}));
}

// What one rank has otherwise is an error on both.
const bool kDiffersInPieces = register_rank_function("differs_in_pieces", [] {
  const auto agent = own_agent(2);
  DistributedManager::initialize({.agent = agent});
  ElasticContext elastic;
  const auto expect_refused = [&](int every, bool is_other, const std::string& text) {
    Zero training;
    if (is_other && agent->assignment().rank == 1) {
      const at::NoGradGuard no_grad;
      training.module().parameters()[0].add_(1);
    }
    try {
      ElasticState state(elastic, training.module(), training.optimizer());
      state.snapshot_every(every);
      state.restore();
      state.commit(0);
      ADD_FAILURE() << "expected: " << text;
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr(text));
    }
  };
  const int own = agent->assignment().rank + 10;
  expect_refused(own, false, "rank 0 has snapshot_every(10), but rank 1 has snapshot_every(11)");
  expect_refused(5, true, "the ranks have other values of 0.weight after step 0");
  DistributedManager::cleanup(true);
});

TEST(PieceSnapshotsTest, WhatDiffersBetweenRanksIsAnErrorOnAll) {
  expect_success(run_generations("differs_in_pieces", {{0, 1}, {1, 1}}));
}

struct Loss {
  int size = 3;
  std::string lost = "1";
  std::string next = "2 0 -1 1";   // of each rank
  std::vector<Begins> begin = {};  // processes of the second generation
  int64_t begins_at = 16;
};

void expect_going_on(const Loss& loss) {
  for (const std::string model : {"zero", "fno", "sharded", "zero of fno"}) {
    std::vector<Begins> processes;
    for (int rank = 0; rank < loss.size; ++rank) processes.push_back({rank, 1});
    processes.insert(processes.end(), loss.begin.begin(), loss.begin.end());
    const auto results = run_generations("pieces", processes,
                                         {{"TEST_MODEL", model},
                                          {"TEST_SIZE", std::to_string(loss.size)},
                                          {"TEST_LOST", loss.lost},
                                          {"TEST_NEXT", loss.next},
                                          {"TEST_NEXT_SIZE", loss.next.substr(0, 1)},
                                          {"TEST_BEGINS", std::to_string(loss.begins_at)}});
    for (const RankResult& result : results) {
      EXPECT_EQ(result.exit_code, 0) << model << ": " << result.output;
    }
  }
}

TEST(PieceSnapshotsTest, ASmallerWorldGoesOn) { expect_going_on({}); }

TEST(PieceSnapshotsTest, RankZeroIsLostAndTheOthersChangePlaces) {
  expect_going_on({.lost = "0", .next = "2 -1 1 0"});
}

TEST(PieceSnapshotsTest, AnotherProcessTakesTheLostOnesPlace) {
  expect_going_on({.next = "3 0 -1 2", .begin = {{1, 2}}});
}

TEST(PieceSnapshotsTest, OneRankIsLeft) {
  expect_going_on({.size = 2, .lost = "1", .next = "1 0 -1"});
}

TEST(PieceSnapshotsTest, ALargerWorldGoesOn) {
  expect_going_on({.size = 2, .lost = "0", .next = "3 -1 1", .begin = {{0, 2}, {2, 2}}});
}

TEST(PieceSnapshotsTest, AMeshOfFourLosesARankAndGetsAnother) {
  expect_going_on({.size = 4, .lost = "2", .next = "4 1 0 -1 3", .begin = {{2, 2}}});
}

TEST(PieceSnapshotsTest, AMeshOfFourBecomesALineOfThree) {
  expect_going_on({.size = 4, .lost = "3", .next = "3 2 0 1 -1"});
}

TEST(PieceSnapshotsTest, PiecesThatWereLostWithTheirCopyAreNotInvented) {
  expect_going_on({.lost = "0 1", .next = "2 -1 -1 0", .begin = {{1, 2}}, .begins_at = 0});
}

TEST(PieceSnapshotsTest, KeepersAreOnOtherHosts) {
  EXPECT_THAT(snapshot_keepers({0}), ElementsAre(0));
  EXPECT_THAT(snapshot_keepers({0, 0, 0}), ElementsAre(1, 2, 0));
  EXPECT_THAT(snapshot_keepers({0, 0, 1, 1}), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(snapshot_keepers({0, 1, 0, 1}), ElementsAre(1, 0, 3, 2));
  EXPECT_THAT(snapshot_keepers({0, 0, 0, 1}), ElementsAre(3, 0, 1, 2));
  for (int ranks = 2; ranks < 40; ++ranks) {
    std::vector<int> nodes;
    for (int rank = 0; rank < ranks; ++rank) nodes.push_back(rank * 7 % 5 % ((ranks + 3) / 4 + 1));
    const std::vector<int> keepers = snapshot_keepers(nodes);
    std::vector<int> sorted = keepers;
    std::ranges::sort(sorted);
    int largest = 0;
    for (int node = 0; node < 5; ++node) {
      largest = std::max(largest, static_cast<int>(std::ranges::count(nodes, node)));
    }
    int crossings = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto at = static_cast<size_t>(rank);
      EXPECT_EQ(sorted[at], rank);
      EXPECT_NE(keepers[at], rank);
      crossings += nodes[at] != nodes[static_cast<size_t>(keepers[at])] ? 1 : 0;
    }
    EXPECT_EQ(crossings, 2 * largest <= ranks ? ranks : 2 * (ranks - largest)) << ranks;
  }
}

}  // namespace
}  // namespace meshrun
