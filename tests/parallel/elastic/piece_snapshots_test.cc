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

class Fno : public InPieces {
 public:
  Fno() {
    at::manual_seed(3);
    network_ = FNO(FNOOptions().width(4).num_layers(2).modes({5, 3}).projection_channels(6).group(
        GroupArgument()));
    shards_ = parameter_shards(*network_);
    const at::NoGradGuard no_grad;
    for (auto& item : network_->named_parameters()) {
      item.value().copy_(own(item.key(), drawn(item.key(), -1, whole_shape(item.key()))));
    }
    optimizer_ = std::make_unique<torch::optim::Adam>(network_->parameters(), AdamOptions(0.01));
  }
  torch::nn::Module& module() override { return *network_; }
  torch::optim::Optimizer& optimizer() override { return *optimizer_; }
  Tensor own(const std::string& name, const Tensor& whole) override {
    const auto shard = shards_.find(name);
    if (shard == shards_.end()) return whole;
    const auto rank = static_cast<size_t>(shard->second.group->getRank());
    const SplitRange& range = shard->second.ranges[rank];
    return whole.narrow(shard->second.dim, range.begin, range.size());
  }
  std::vector<int64_t> whole_shape(const std::string& name) override {
    const auto shard = shards_.find(name);
    if (shard != shards_.end()) return shard->second.global_shape;
    return network_->named_parameters()[name].sizes().vec();
  }

 private:
  FNO network_ = nullptr;
  std::map<std::string, ParameterShard> shards_;
  std::unique_ptr<torch::optim::Adam> optimizer_;
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
  if (model == "fno") return std::make_unique<Fno>();
  return std::make_unique<Sharded>();
}

void expect_as_in_one_process(InPieces& training) {
  for (const auto& item : training.module().named_parameters()) {
    Tensor whole = drawn(item.key(), -1, training.whole_shape(item.key())).requires_grad_();
    torch::optim::Adam alone({whole}, AdamOptions(0.01));
    for (int64_t step = 0; step < kTrained; ++step) {
      whole.mutable_grad() = drawn(item.key(), step, whole.sizes());
      alone.step();
    }
    const Tensor mine = is_sharded(item.value()) ? local_of(item.value()) : item.value();
    EXPECT_TRUE(at::equal(mine, training.own(item.key(), whole))) << item.key();
  }
}

std::string variable(const char* name) { return std::getenv(name); }

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
    // A kept value in pieces of its own: the rank's sum of what it has drawn.
    Tensor drawn_sum = at::zeros({}, at::kDouble);
    state.keep("count", drawn_sum);
    state.snapshot_every(kEvery);
    const int64_t first = state.restore().value_or(0);
    starts.push_back(first);
    EXPECT_EQ(drawn_sum.item<double>(), static_cast<double>(first));
    for (const int64_t step : state.steps(first, kTrained)) {
      before_step(step);
      training->set_gradients(step);
      // As the collectives of a real step: nobody is ahead of a lost rank.
      manager.world()->barrier()->wait();
      state.update([&] {
        training->optimizer().step();
        drawn_sum += 1;
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

// Three ranks; TEST_LOST die at a step. Those that are left go on as TEST_NEXT says.
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

struct Loss {
  int size = 3;
  std::string lost = "1";
  std::string next = "2 0 -1 1";   // of each rank
  std::vector<Begins> begin = {};  // processes of the second generation
  int64_t begins_at = 16;
};

void expect_going_on(const Loss& loss) {
  for (const std::string model : {"zero", "fno", "sharded"}) {
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
