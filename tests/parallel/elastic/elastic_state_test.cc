// What an ElasticState hands on when a rank dies anywhere in a step, and what it refuses.
#include "parallel/elastic/elastic_state.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "parallel/base/collective_errors.h"
#include "parallel/base/split.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/tensor_versions.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/elastic/elastic_ranks.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kRecipeSteps = 24;
constexpr int64_t kRankDiesAt = 13;

struct RecipeNetImpl : torch::nn::Module {
  RecipeNetImpl() {
    first = register_module("first", torch::nn::Linear(6, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    last = register_module("last", torch::nn::Linear(8, 3));
    critic = register_module("critic", torch::nn::Linear(3, 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    return last(at::dropout(norm(first(x)), 0.25, /*train=*/true));
  }
  torch::nn::Linear first = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
  torch::nn::Linear last = nullptr;
  torch::nn::Linear critic = nullptr;  // has an optimizer of its own
};
TORCH_MODULE(RecipeNet);

std::vector<at::Tensor> all_but_critic(const RecipeNetImpl& network) {
  std::vector<at::Tensor> parameters;
  for (const auto& item : network.named_parameters()) {
    if (!item.key().starts_with("critic")) parameters.push_back(item.value());
  }
  return parameters;
}

void sum_over_ranks(const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors = {tensor};
  DistributedManager::get().world()->allreduce(tensors)->wait();
}

// Steps of a training that has most of what a training may have. Rank 1 of the first generation
// dies at the statement that TEST_POINT names; a process that waits takes its place.
class Recipe {
 public:
  Recipe(ElasticContext& elastic, GenerationAgent& agent)
      : agent_(agent),
        scheduler_(optimizer_, /*step_size=*/4, /*gamma=*/0.5),
        state_(elastic, *network_, optimizer_) {
    state_.keep("critic", critic_optimizer_);
    state_.keep("scheduler", scheduler_);
    state_.keep("ema", *ema_);
    state_.keep("best", best_);
    state_.keep(
        "batches", [this] { return std::to_string(batches_); },
        [this](const std::string& bytes) { batches_ = std::stoll(bytes); });
    state_.seed_each_step(17);
  }

  void train() {
    for (const int64_t step : state_.steps(state_.restore().value_or(0), kRecipeSteps)) {
      take(step);
    }
    EXPECT_EQ(network_->norm->num_batches_tracked.item<int64_t>(), kRecipeSteps);
    EXPECT_EQ(batches_, kRecipeSteps);
  }

  // Digest of all that the ranks have alike, and on rank 0 of its running statistics too.
  int64_t digest() const {
    std::vector<at::Tensor> all = {best_};
    for (const at::Tensor& parameter : network_->parameters()) all.push_back(parameter);
    for (const at::Tensor& parameter : ema_->parameters()) all.push_back(parameter);
    all.push_back(at::scalar_tensor(optimizer_.param_groups()[0].options().get_lr(), at::kDouble));
    if (DistributedManager::get().rank() == 0) {
      all.push_back(network_->norm->running_mean);
      all.push_back(network_->norm->running_var);
    }
    TensorVersions tensors;
    for (const at::Tensor& tensor : all) tensors.add("", tensor);
    return tensors.digest();
  }

 private:
  void take(int64_t step) {
    const auto point = [&](const std::string& name) {
      if (std::getenv("TEST_POINT") != name || step != kRankDiesAt) return;
      if (agent_.assignment().rank != 1 || agent_.assignment().generation != 1) return;
      agent_.set("next", "2 0 -1");
      agent_.set("lost", "1");
      _exit(0);
    };
    point("start");
    optimizer_.zero_grad();
    critic_optimizer_.zero_grad();
    at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
    const at::Tensor batch = at::randn({12, 6}, generator);
    const DistributedManager& manager = DistributedManager::get();
    const SplitRange own = split_range(12, manager.world_size(), manager.rank());
    const at::Tensor x = batch.slice(0, own.begin, own.end);
    const at::Tensor y = network_(x);
    const at::Tensor loss =
        (y - x.slice(1, 0, 3)).square().sum() + (network_->critic(y) - 1).square().sum();
    point("forward");
    loss.backward();
    point("backward");
    for (const at::Tensor& parameter : network_->parameters()) sum_over_ranks(parameter.grad());
    point("gradients");
    const at::Tensor metric = loss.detach().clone();
    sum_over_ranks(metric);
    point("metric");
    const auto change = [&] {
      optimizer_.step();
      point("optimizer");
      critic_optimizer_.step();
      scheduler_.step();
      point("scheduler");
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < ema_->parameters().size(); ++i) {
        ema_->parameters()[i].mul_(0.9).add_(network_->parameters()[i], 0.1);
      }
      point("average");
      best_.copy_(at::minimum(best_, metric));
      ++batches_;
    };
    if (std::getenv("TEST_WITHOUT_UPDATE") == nullptr) {
      state_.update(change);
    } else {
      change();
    }
    point("update");
    sum_over_ranks(metric);
    point("end");
  }

  GenerationAgent& agent_;
  RecipeNet network_, ema_;
  at::Tensor best_ = at::full({}, 1e9);
  int64_t batches_ = 0;
  torch::optim::Adam optimizer_{all_but_critic(*network_), torch::optim::AdamOptions(0.05)};
  torch::optim::Adam critic_optimizer_{network_->critic->parameters(),
                                       torch::optim::AdamOptions(0.02)};
  torch::optim::StepLR scheduler_;
  ElasticState state_;
};

const bool kRecipe = register_rank_function("recipe", [] {
  if (number("TEST_GENERATION") == 2) await_second_generation();
  const auto agent = own_agent(2);
  DistributedManager::initialize({.agent = agent});
  ElasticContext elastic({.log = [](const std::string& line) { std::cout << line << std::endl; }});
  elastic.run([&] {
    at::manual_seed(3);
    Recipe recipe(elastic, *agent);
    recipe.train();
    std::cout << "state " << recipe.digest() << std::endl;
  });
  DistributedManager::cleanup(true);
});

std::string state_in(const RankResult& result) {
  const size_t at = result.output.rfind("state ");
  if (at == std::string::npos) return "no state in: " + result.output;
  return result.output.substr(at, result.output.find('\n', at) - at);
}

// Without a loss.
std::vector<std::string> undisturbed_states() {
  const auto ranks = run_generations("recipe", {{0, 1}, {1, 1}}, {{"TEST_POINT", "none"}});
  expect_success(ranks);
  return {state_in(ranks[0]), state_in(ranks[1])};
}

// The survivor, and the process in the dead rank's place, end as if nothing had happened. Returns
// what the survivor said.
std::string expect_undisturbed(Variables more, const std::vector<std::string>& undisturbed) {
  const auto ranks = run_generations("recipe", {{0, 1}, {1, 1}, {1, 2}}, more);
  EXPECT_EQ(ranks[0].exit_code, 0) << ranks[0].output;
  EXPECT_EQ(ranks[2].exit_code, 0) << ranks[2].output;
  EXPECT_EQ(state_in(ranks[0]), undisturbed[0]);
  EXPECT_EQ(state_in(ranks[2]), undisturbed[1]);
  EXPECT_THAT(ranks[0].output, HasSubstr("leaves generation 1"));
  return ranks[0].output;
}

TEST(ElasticStateTest, ARankMayDieBetweenAnyTwoStatementsOfAStep) {
  const std::vector<std::string> undisturbed = undisturbed_states();
  for (const std::string point : {"start", "forward", "backward", "gradients", "metric",
                                  "optimizer", "scheduler", "average", "update", "end"}) {
    SCOPED_TRACE(point);
    EXPECT_THAT(expect_undisturbed({{"TEST_POINT", point}}, undisturbed),
                AllOf(HasSubstr("goes on after step 1"), Not(HasSubstr("half done"))));
  }
}

TEST(ElasticStateTest, AHalfDoneStepWithoutUpdateIsNeverTrainedOn) {
  // The survivor waits in the collective after its change.
  EXPECT_THAT(expect_undisturbed({{"TEST_POINT", "update"}, {"TEST_WITHOUT_UPDATE", "1"}},
                                 undisturbed_states()),
              AllOf(HasSubstr("this rank's memory is not used: step 14 was half done"),
                    Not(HasSubstr("goes on after step"))));
}

// The message, or what came instead.
template <typename Error>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "nothing was raised";
}

const bool kUpdates = register_rank_function("updates", [] {
  const auto agent = own_agent(1);
  DistributedManager::initialize({.agent = agent});
  ElasticContext elastic;
  torch::nn::Linear network(2, 1);
  torch::optim::Adam optimizer(network->parameters());
  const auto world = DistributedManager::get().world();
  std::optional<ElasticState> first(std::in_place, elastic, *network, optimizer);
  ElasticState& state = *first;
  EXPECT_THAT(message_of<c10::Error>([&] { state.update([] {}); }),
              HasSubstr("does not know how many steps are done"));
  state.commit(0);
  EXPECT_THAT(message_of<c10::Error>([&] { state.update([] {}); }),
              HasSubstr("restore() was not called"));
  EXPECT_THAT(message_of<c10::Error>([&] { state.steps(0, 2).begin(); }),
              HasSubstr("restore() was not called"));
  EXPECT_FALSE(state.restore());
  EXPECT_THAT(
      message_of<c10::Error>([&] { const ElasticState other(elastic, *network, optimizer); }),
      HasSubstr("another one is alive"));
  EXPECT_THAT(message_of<c10::Error>([&] { state.keep("late", at::ones({1})); }),
              HasSubstr("after restore()"));

  const std::vector<std::pair<std::string, std::function<void()>>> calls = {
      {"barrier", [&] { world->barrier()->wait(); }},
      {"all_reduce of float32 [2]", [] { sum_over_ranks(at::ones({2})); }},
      {"CheckpointDirectory::save()",
       [&] { CheckpointDirectory("/nowhere", {}).save(*network, optimizer, {}); }},
  };
  for (const auto& [name, call] : calls) {
    EXPECT_THAT(message_of<CollectiveForbiddenError>([&] { state.update(call); }),
                AllOf(HasSubstr(name),
                      HasSubstr(" inside ElasticState::update(): move it before or after")));
    EXPECT_THAT(message_of<c10::Error>([&] { state.update([] {}); }),
                HasSubstr("after one that raised"));
    state.commit(0);
  }
  world->barrier()->wait();  // the group stays usable
  const auto under_way = world->barrier();
  EXPECT_THAT(
      message_of<CollectiveForbiddenError>([&] { state.update([&] { under_way->wait(); }); }),
      HasSubstr("wait() for a collective inside"));
  under_way->wait();

  // A loop of the program's own.
  state.commit(3);
  state.update([&] { optimizer.step(); });
  optimizer.param_groups()[0].options().set_lr(0.125);  // as a schedule does
  state.update([&] { optimizer.step(); });
  {
    const at::NoGradGuard no_grad;
    network->weight.add_(1);
  }
  EXPECT_THAT(message_of<c10::Error>([&] { state.update([] {}); }),
              HasSubstr("weight was changed since the update() of step 4"));

  const auto loop = [&](const std::function<void()>& body) {
    return message_of<c10::Error>([&] {
      for ([[maybe_unused]] const int64_t step : state.steps(5, 7)) body();
    });
  };
  EXPECT_EQ(loop([&] { state.update([&] { optimizer.step(); }); }), "nothing was raised");
  EXPECT_THAT(loop([&] {
                state.update([] {});
                state.update([] {});
              }),
              HasSubstr("twice in step 5"));
  EXPECT_THAT(loop([&] {
                state.update([] {});
                const at::NoGradGuard no_grad;
                network->weight.add_(1);
              }),
              HasSubstr("weight was changed after the update() of step 5"));
  EXPECT_THAT(loop([&] {
                {
                  const at::NoGradGuard no_grad;
                  network->weight.add_(1);
                }
                state.update([] {});
              }),
              HasSubstr("weight was changed since the update() of step 5"));
  state.commit(5);
  EXPECT_THAT(loop([&] {
                state.update([] {});
                optimizer.param_groups()[0].options().set_lr(0.5);
              }),
              HasSubstr("an option of the optimizer was changed after the update() of step 5"));
  EXPECT_EQ(loop([&] { optimizer.param_groups()[0].options().set_lr(0.25); }), "nothing was raised")
      << "a loop without update()";

  state.seed_each_step(3);
  for (const int64_t step : state.steps(5, 7)) {
    at::Generator same = at::detail::createCPUGenerator(step_seed(3, step, 0));
    EXPECT_TRUE(at::equal(at::rand({4}), at::rand({4}, same)));
  }

  const std::string nested =
      message_of<c10::Error>([&] { elastic.run([&] { elastic.run([] {}); }); });
  EXPECT_THAT(nested, HasSubstr("within the body of another run()"));
  first.reset();
  EXPECT_THAT(
      message_of<c10::Error>([&] { const ElasticState second(elastic, *network, optimizer); }),
      HasSubstr("this one's has ended after 7 steps"));
  DistributedManager::cleanup(true);
});

const bool kAccumulates = register_rank_function("accumulates", [] {
  const auto agent = own_agent(1);
  DistributedManager::initialize({.agent = agent});
  torch::nn::Linear network(2, 1);
  torch::nn::BatchNorm1d teacher(2);
  torch::optim::SGD optimizer(network->parameters(), 0.1);
  // Trains until a loss in this world; returns the steps of the memory, and how many batches its
  // teacher lacks.
  const auto remembered = [&](int64_t update_at, int64_t lost_in) {
    std::optional<std::pair<int64_t, int64_t>> result;
    int64_t statistics = -1;
    ElasticContext elastic;
    elastic.run([&] {
      optimizer.zero_grad();
      ElasticState state(elastic, *network, optimizer);
      state.keep("teacher", *teacher);
      const auto steps = state.restore();
      if (statistics >= 0) {
        result.emplace(steps.value_or(-1),
                       statistics - teacher->num_batches_tracked.item<int64_t>());
        return;
      }
      for (const int64_t step : state.steps(0, 10)) {
        network(teacher(at::ones({4, 2}))).sum().backward();
        if (step == lost_in) break;
        if (step != update_at) continue;
        state.update([&] { optimizer.step(); });
        optimizer.zero_grad();
      }
      statistics = teacher->num_batches_tracked.item<int64_t>();
      dynamic_cast<GenerationAgent&>(*DistributedManager::get().agent()).set("next", "1 0");
      throw PeerLostError("as if a rank were lost");
    });
    return result.value();
  };
  const std::string scenario = std::getenv("TEST_SCENARIO");
  // Steps 4 and 5 are lost with their gradients, and with what their batches counted.
  if (scenario == "late") {
    EXPECT_EQ(remembered(3, 6), std::pair(int64_t{4}, int64_t{3}));
  } else {
    EXPECT_EQ(remembered(0, 1), std::pair(int64_t{1}, int64_t{1}));
  }

  ElasticContext elastic;
  torch::nn::Linear head(1, 1);
  std::vector<at::Tensor> both = network->parameters();
  both.push_back(head->weight);
  torch::optim::Adam wider(both);
  EXPECT_THAT(message_of<c10::ValueError>([&] { ElasticState(elastic, *network, wider); }),
              HasSubstr("a parameter of [1, 1] in group 0 of the optimizer is not one of the"));
  EXPECT_THAT(message_of<c10::ValueError>(
                  [&] { CheckpointDirectory("/nowhere", {}).save(*network, wider, {}); }),
              HasSubstr("is not one of the module's"));
  DistributedManager::cleanup(true);
});

const bool kApart = register_rank_function("names_apart", [] {
  const auto agent = own_agent(2);
  DistributedManager::initialize({.agent = agent});
  std::vector<std::string> lines;
  ElasticContext elastic({.log = [&](const std::string& line) { lines.push_back(line); }});
  torch::nn::Sequential pair(torch::nn::Linear(2, 1), torch::nn::Linear(1, 1));
  torch::optim::Adam optimizer(pair[0]->as<torch::nn::Linear>()->parameters());
  torch::optim::Adam other(pair[1]->as<torch::nn::Linear>()->parameters());
  const auto names = [&](bool is_told) {
    return message_of<c10::ValueError>([&] {
      ElasticState state(elastic, *pair, optimizer);
      if (is_told) {
        state.keep("other", other);
      } else if (DistributedManager::get().rank() == 1) {
        state.keep("late", at::ones({1}));
      }
      state.restore();
      for ([[maybe_unused]] const int64_t step : state.steps(0, 3)) {
        optimizer.zero_grad();
        other.zero_grad();
        pair->forward(at::ones({3, 2})).sum().backward();
        state.update([&] {
          optimizer.step();
          other.step();
        });
      }
    });
  };
  EXPECT_EQ(names(false),
            "ElasticState::restore(): rank 0 keeps [], but rank 1 keeps [late]: all ranks keep() "
            "the same names");
  EXPECT_EQ(names(true), "nothing was raised");
  EXPECT_EQ(lines.size(), 0) << lines[0];
  DistributedManager::cleanup(true);
});

TEST(ElasticStateTest, NamesThatOneRankAloneKeepsAreAnErrorBeforeTheFirstStep) {
  expect_success(run_generations("names_apart", {{0, 1}, {1, 1}}));
}

const bool kUnequal = register_rank_function("unequal_steps", [] {
  const auto agent = own_agent(2);
  DistributedManager::initialize({.agent = agent});
  torch::nn::Linear network(2, 1);
  torch::optim::Adam optimizer(network->parameters());
  ElasticContext elastic;
  EXPECT_EQ(message_of<c10::Error>([&] {
              elastic.run([&] {
                ElasticState state(elastic, *network, optimizer);
                state.restore();
                const int64_t last = 3 + DistributedManager::get().rank();
                for ([[maybe_unused]] const int64_t step : state.steps(0, last)) {
                  state.update([&] { optimizer.step(); });
                }
              });
            }),
            "the work of ElasticContext::run() has ended after 3 steps of an ElasticState on rank "
            "0, and after 4 on rank 1: all ranks take the same steps");
  DistributedManager::cleanup(true);
});

TEST(ElasticStateTest, RanksThatEndAfterOtherStepsAreAnErrorOnAll) {
  expect_success(run_generations("unequal_steps", {{0, 1}, {1, 1}}));
}

const bool kTells = register_rank_function("tells_of_others", [] {
  const auto agent = own_agent(1);
  DistributedManager::initialize({.agent = agent});
  std::vector<std::string> lines;
  ElasticContext elastic({.log = [&](const std::string& line) { lines.push_back(line); }});
  torch::nn::Sequential pair(torch::nn::Linear(2, 1), torch::nn::Linear(1, 1));
  torch::optim::Adam optimizer(pair[0]->as<torch::nn::Linear>()->parameters());
  torch::optim::Adam other(pair[1]->as<torch::nn::Linear>()->parameters());
  ElasticState state(elastic, *pair, optimizer);
  state.restore();
  for ([[maybe_unused]] const int64_t step : state.steps(0, 4)) {
    pair->forward(at::ones({3, 2})).sum().backward();
    state.update([&] {
      optimizer.step();
      other.step();
    });
  }
  ASSERT_EQ(lines.size(), 1);
  EXPECT_THAT(lines[0], HasSubstr("1.weight is changed in update(), and is not the ElasticState's "
                                  "optimizer's: if another optimizer steps it, keep() that one"));
  DistributedManager::cleanup(true);
});

TEST(ElasticStateTest, AnotherOptimizerThatNobodyKeepsIsToldOnce) {
  expect_success(run_generations("tells_of_others", {{0, 1}}));
}

TEST(ElasticStateTest, AccumulatedGradientsBelongToTheStepThatTakesThem) {
  for (const char* scenario : {"late", "early"}) {
    expect_success(run_generations("accumulates", {{0, 1}}, {{"TEST_SCENARIO", scenario}}));
  }
}

TEST(ElasticStateTest, StateChangesInUpdateAlone) {
  expect_success(run_generations("updates", {{0, 1}}));
}

// Plain parameters, and a buffer on a mesh.
struct FieldImpl : torch::nn::Module {
  FieldImpl() {
    register_parameter("weight", at::ones({2}));
    const DeviceMesh& mesh = DistributedManager::get().initialize_mesh({1}, {"domain"});
    register_buffer("field", ShardTensor::from_local(at::ones({2, 2}), mesh, Placements{Shard(0)}));
  }
};
TORCH_MODULE(Field);

void keep_a_field() {
  Field field;
  torch::optim::Adam optimizer(field->parameters());
  EXPECT_FALSE(is_whole(*field, optimizer));
  {
    ElasticContext elastic;
    ElasticState state(elastic, *field, optimizer);
    state.commit(4);
  }  // remembers nothing, and aborts nothing
  // A checkpoint does.
  CheckpointDirectory checkpoints(::testing::TempDir() + "/field", {});
  checkpoints.save(*field, optimizer, {4});
  local_of(field->named_buffers()["field"]).zero_();
  EXPECT_EQ(checkpoints.load(*field, optimizer)->step, 4);
  EXPECT_TRUE(at::equal(local_of(field->named_buffers()["field"]), at::ones({2, 2})));
}

const bool kSharded = register_rank_function("sharded_state", [] {
  const auto agent = own_agent(1);
  DistributedManager::initialize({.agent = agent});
  keep_a_field();
  DistributedManager::cleanup(true);
});

TEST(ElasticStateTest, ATrainingWithAShardTensorIsNotWhole) {
  expect_success(run_generations("sharded_state", {{0, 1}}));
}

}  // namespace
}  // namespace meshrun
