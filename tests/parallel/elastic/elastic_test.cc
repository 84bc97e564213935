// Trainings that live through changes of the world: the result is that of one process.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "parallel/base/split.h"
#include "parallel/elastic/elastic_state.h"
#include "parallel/elastic/stop_signal.h"
#include "parallel/manager/distributed_manager.h"
#include "tests/parallel/elastic/elastic_ranks.h"
#include "tests/parallel/elastic/generation_agent.h"
#include "tests/parallel/support/parameters.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {

// Declared to be named in calls that are never made.
namespace given {
extern ElasticContext& context;
extern ElasticState& state;
extern const ElasticSteps::Begin begin;
extern const ElasticSteps::End end;
}  // namespace given

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSteps = 40;
constexpr int64_t kBatch = 12;
constexpr int64_t kFails = 17;

// `generations`: the first one of each process.
std::vector<RankResult> run(const std::string& function, const std::vector<int>& generations) {
  std::vector<Begins> processes;
  for (const int generation : generations) {
    processes.push_back({static_cast<int>(processes.size()), generation});
  }
  return run_generations(function, processes);
}

// The batch of a step is a function of the step, cut into as many pieces as there are ranks; the
// network has a dropout, so that the random generator is part of the state.
class Regression {
 public:
  Regression() {
    at::manual_seed(7);
    network = torch::nn::Linear(6, 3);
    optimizer = std::make_unique<torch::optim::Adam>(network->parameters(), 0.01);
  }
  void step(int64_t step, int rank, int world_size,
            const std::function<void(at::Tensor&)>& reduce) {
    at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
    const at::Tensor batch = at::randn({kBatch, 6}, generator);
    // Equal on all ranks: drawn from the default generator, whose state goes along.
    const at::Tensor noise = at::randn({kBatch, 3});
    const SplitRange range = split_range(kBatch, world_size, rank);
    optimizer->zero_grad();
    const at::Tensor error = network->forward(batch.slice(0, range.begin, range.end)) -
                             noise.slice(0, range.begin, range.end);
    error.square().sum().backward();
    for (at::Tensor& parameter : network->parameters()) reduce(parameter.mutable_grad());
    optimizer->step();
  }

  torch::nn::Linear network = nullptr;
  std::unique_ptr<torch::optim::Adam> optimizer;
};

void expect_as_in_one_process(const Regression& trained) {
  Regression alone;
  for (int64_t step = 0; step < kSteps; ++step) alone.step(step, 0, 1, [](at::Tensor&) {});
  for (size_t i = 0; i < alone.network->parameters().size(); ++i) {
    const at::Tensor expected = alone.network->parameters()[i];
    const at::Tensor difference = trained.network->parameters()[i] - expected;
    EXPECT_LT(difference.norm().item<double>(), 1e-5 * expected.norm().item<double>());
  }
}

// Calls `before_step` before each step, in each world.
void train(ElasticContext& elastic, std::vector<int64_t>& starts,
           const std::function<void(int64_t step)>& before_step) {
  elastic.run([&] {
    DistributedManager& manager = DistributedManager::get();
    Regression job;
    ElasticState state(elastic, *job.network, *job.optimizer);
    const int64_t first = state.restore().value_or(0);
    starts.push_back(first);
    for (const int64_t step : state.steps(first, kSteps)) {
      before_step(step);
      job.step(step, manager.rank(), manager.world_size(), [&](at::Tensor& gradient) {
        std::vector<at::Tensor> gradients = {gradient};
        manager.world()->allreduce(gradients)->wait();
      });
    }
    expect_as_in_one_process(job);
  });
}

// Three ranks; rank 1 dies at a step, and the others change places.
const bool kSurvivors = register_rank_function("survivors", [] {
  const auto agent = own_agent(3);
  DistributedManager::initialize({.agent = agent});
  ElasticContext elastic;
  std::vector<int64_t> starts;
  train(elastic, starts, [&](int64_t step) {
    DistributedManager& manager = DistributedManager::get();
    if (manager.world_size() < 3 || manager.rank() != 1 || step != kFails) return;
    agent->set("next", "2 1 -1 0");
    agent->set("lost", "1");
    _exit(0);
  });
  ASSERT_EQ(starts.size(), 2u);
  // At most the step that was under way is taken again.
  EXPECT_EQ(starts[1], kFails);
  EXPECT_EQ(DistributedManager::get().world_size(), 2);
  EXPECT_EQ(DistributedManager::get().rank(), agent->assignment().rank == 0 ? 1 : 0);
  DistributedManager::cleanup(true);
});

TEST(ElasticTest, SurvivorsOfALossGoOnFromMemory) {
  for (const RankResult& result : run("survivors", {1, 1, 1})) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

// Two ranks, and then a third: where the first two stand, it begins.
const bool kGrowing = register_rank_function("growing", [] {
  auto agent = own_agent(number("TEST_GENERATION") == 1 ? 2 : 3);
  const bool is_new = agent->assignment().generation == 2;
  if (is_new) await_second_generation();
  DistributedManager::initialize({.agent = agent});
  ElasticContext elastic;
  std::vector<int64_t> starts;
  train(elastic, starts, [&](int64_t step) {
    const bool is_first = DistributedManager::get().world_size() == 2;
    if (!is_first || step != kFails || agent->assignment().rank != 0) return;
    agent->set("next", "3 0 1");
    agent->set("quiesce", "now");
    // Else the last steps, which take no time, might be over before it hears.
    while (!elastic.is_quiesce_wanted()) usleep(1000);
  });
  ASSERT_EQ(starts.size(), is_new ? 1u : 2u);
  EXPECT_GT(starts.back(), kFails);
  EXPECT_LT(starts.back(), kSteps);
  EXPECT_EQ(starts.back() % 10, 0);
  if (!is_new) {
    EXPECT_EQ(GenerationAgent::quiesced_at, starts.back());
  }
  EXPECT_EQ(DistributedManager::get().world_size(), 3);
  DistributedManager::cleanup(true);
});

TEST(ElasticTest, TheWorldGrowsAtTheEndOfAStep) { expect_success(run("growing", {1, 1, 2})); }

// A training of one step in each world. What the body gives at_end() is counted, and `at_last` is
// called at the body's end.
struct Ends {
  int bodies = 0;
  int acts = 0;
};
Ends train_one_step(const std::shared_ptr<GenerationAgent>& agent,
                    const std::function<void()>& at_last) {
  DistributedManager::initialize({.agent = agent});
  ElasticContext elastic;
  Ends ends;
  elastic.run([&] {
    DistributedManager& manager = DistributedManager::get();
    Regression job;
    ElasticState state(elastic, *job.network, *job.optimizer);
    const int64_t first = state.restore().value_or(0);
    // The loop's steps are not done again.
    EXPECT_EQ(first, ends.bodies++ == 0 ? 0 : 1);
    for (const int64_t step : state.steps(first, 1)) {
      job.step(step, manager.rank(), manager.world_size(), [&](at::Tensor& gradient) {
        std::vector<at::Tensor> gradients = {gradient};
        manager.world()->allreduce(gradients)->wait();
      });
    }
    elastic.at_end([&ends] {
      EXPECT_GT(GenerationAgent::finish_reports, 0) << "the report comes first";
      ++ends.acts;
    });
    at_last();
  });
  return ends;
}

const bool kFinishes = register_rank_function("finishes", [] {
  const Ends ends = train_one_step(own_agent(2), [] {});
  EXPECT_EQ(ends.bodies, 1);
  EXPECT_EQ(ends.acts, 1);
  EXPECT_EQ(GenerationAgent::finish_reports, 1);
  DistributedManager::cleanup(true);
});

TEST(ElasticTest, EachRankReportsOnceThatItHasFinished) { expect_success(run("finishes", {1, 1})); }

const bool kRunsTwice = register_rank_function("runs_twice", [] {
  const auto agent = own_agent(2);
  DistributedManager::initialize({.agent = agent});
  ElasticContext first;
  ElasticContext other;
  int bodies = 0;
  first.run([&] { ++bodies; });
  for (ElasticContext* const context : {&first, &other}) {
    try {
      context->run([&] { ++bodies; });
      ADD_FAILURE() << "work after the report that all of it is finished";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("put all work into one run()"));
    }
  }
  EXPECT_EQ(bodies, 1);
  EXPECT_EQ(GenerationAgent::finish_reports, 1);
  DistributedManager::cleanup(true);
});

TEST(ElasticTest, WorkAfterTheReportThatItIsFinishedIsRefused) {
  expect_success(run("runs_twice", {1, 1}));
}

// Rank 1 is killed after its loop, before any rank has reported: all others run the body again.
const bool kLostAtTheEnd = register_rank_function("lost_at_the_end", [] {
  const auto agent = own_agent(3);
  const Ends ends = train_one_step(agent, [&] {
    DistributedManager& manager = DistributedManager::get();
    if (manager.world_size() < 3) return;
    agent->set("done " + std::to_string(manager.rank()), "1");
    if (manager.rank() != 1) return;
    // Their last messages may still be on their way.
    while (!agent->has("done 0") || !agent->has("done 2")) usleep(1000);
    agent->set("failed", "1");
    agent->set("next", "2 0 -1 1");
    agent->set("lost", "1");
    _exit(0);
  });
  EXPECT_EQ(ends.bodies, 2);
  EXPECT_EQ(ends.acts, 1);
  EXPECT_EQ(GenerationAgent::finish_reports, 1);
  DistributedManager::cleanup(true);
});

TEST(ElasticTest, ALossBeforeAnyReportRunsTheBodyAgainAndItsEndOnce) {
  for (const RankResult& result : run("lost_at_the_end", {1, 1, 1})) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

// Rank 1 has reported and is killed: what rank 0 waits for in the last barrier went with it.
const bool kLostAfterIt = register_rank_function("lost_after_it", [] {
  const auto agent = own_agent(2);
  const Ends ends = train_one_step(agent, [&] {
    if (DistributedManager::get().rank() != 1) {
      agent->set("done 0", "1");
      return;
    }
    while (!agent->has("done 0")) usleep(1000);
    agent->set("finished", "1");
    agent->set("lost", "1");
    _exit(0);
  });
  EXPECT_EQ(ends.bodies, 1);
  EXPECT_EQ(ends.acts, 1);
  EXPECT_EQ(GenerationAgent::finish_reports, 1);
  DistributedManager::cleanup();
});

TEST(ElasticTest, ALossAfterAReportDoesNotRunTheBodyAgain) {
  for (const RankResult& result : run("lost_after_it", {1, 1})) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

// Outside meshrun: nothing is reported, and the end still comes once.
const bool kAlone = register_rank_function("alone", [] {
  DistributedManager::initialize();
  ElasticContext elastic;
  std::vector<std::string> order;
  elastic.run([&] {
    elastic.at_end([&order] { order.push_back("end"); });
    order.push_back("body");
  });
  EXPECT_EQ(order, (std::vector<std::string>{"body", "end"}));
  // The function of at_end() belonged to that run alone.
  elastic.run([&] { order.push_back("body"); });
  EXPECT_EQ(order, (std::vector<std::string>{"body", "end", "body"}));
  // The program's own error, which no other world mends.
  EXPECT_THROW(elastic.run([&] {
    elastic.at_end([] { throw std::invalid_argument("the program's own"); });
  }),
               std::invalid_argument);
  DistributedManager::cleanup();
});

TEST(ElasticTest, OutsideMeshrunTheEndFollowsTheBody) { expect_success(run("alone", {1})); }

const bool kOwnError = register_rank_function("own_error", [] {
  const auto agent = own_agent(1);
  DistributedManager::initialize({.agent = agent});
  ElasticContext elastic;
  int worlds = 0;
  EXPECT_THROW(elastic.run([&] {
    ++worlds;
    throw std::invalid_argument("the program's own");
  }),
               std::invalid_argument);
  EXPECT_EQ(worlds, 1);
  EXPECT_THROW(elastic.run([&] {
    torch::nn::Linear network(1, 1);
    torch::optim::Adam optimizer(network->parameters());
    ElasticState(elastic, *network, optimizer).steps(0, 10, 0);
  }),
               c10::ValueError);
});

TEST(ElasticTest, TheProgramsOwnErrorLeaves) { expect_success(run("own_error", {1})); }

TEST(ElasticTest, NumbersOfStepsTakeIntegersOnly) {
  using given::context;
  using given::state;
  EXPECT_TAKES_INTEGERS_ONLY(state.steps(value, 10));
  EXPECT_TAKES_INTEGERS_ONLY(state.steps(0, value));
  EXPECT_TAKES_INTEGERS_ONLY(state.steps(0, 10, value));
  EXPECT_TAKES_INTEGERS_ONLY(state.commit(value));
  EXPECT_TAKES_INTEGERS_ONLY(context.stand_still(value));
  EXPECT_TAKES_INTEGERS_ONLY(state.seed_each_step(value));
  EXPECT_TAKES_INTEGERS_ONLY(state.seed_each_step(1, value));
  EXPECT_TAKES_INTEGERS_ONLY(state.seed_step(value));
  EXPECT_TAKES_INTEGERS_ONLY(step_seed(value, 0, 0));
  EXPECT_TAKES_INTEGERS_ONLY(step_seed(1, value, 0));
  EXPECT_TAKES_INTEGERS_ONLY(step_seed(1, 0, value));
  EXPECT_TAKES_INTEGERS_ONLY(ElasticSteps(value, 10, given::begin, given::end));
  EXPECT_TAKES_INTEGERS_ONLY(ElasticSteps(0, value, given::begin, given::end));
  EXPECT_TAKES_INTEGERS_ONLY(request_stop(value));
}

}  // namespace
}  // namespace meshrun
