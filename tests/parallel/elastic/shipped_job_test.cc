// The shipped jobs' training and report (jobs/runtime) when a rank is lost after its last update.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <utility>
#include <vector>

#include "jobs/runtime/ending.h"
#include "jobs/runtime/training.h"
#include "parallel/elastic/stop_signal.h"
#include "parallel/manager/distributed_manager.h"
#include "tests/parallel/elastic/elastic_ranks.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kToySteps = 13;

// Rank 1 of the first generation dies in its last update, when rank 0 has done its own: rank 0 then
// waits for it in the last checkpoint.
class DyingAdam : public torch::optim::Adam {
 public:
  DyingAdam(std::vector<at::Tensor> parameters, GenerationAgent& agent)
      : Adam(std::move(parameters), torch::optim::AdamOptions(0.05)), agent_(agent) {}

  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss = Adam::step(std::move(closure));
    if (++steps_ == kToySteps && std::getenv("TEST_DIES") != nullptr) die_on_rank_1();
    return loss;
  }

 private:
  void die_on_rank_1() {
    if (agent_.assignment().rank == 0) {
      agent_.set("updated", "1");
      return;
    }
    while (!agent_.has("updated")) usleep(1000);
    agent_.set("next", "2 0 -1");
    agent_.set("lost", "1");
    _exit(0);
  }

  GenerationAgent& agent_;
  int64_t steps_ = 0;
};

// Puts a file in the place of the checkpoints before the step TEST_BREAKS, and takes it away before
// TEST_MENDS. Rank 1 is asked to stop in the step TEST_STOPS.
void meddle(const std::string& checkpoints, int64_t step) {
  const auto is_due = [&](const char* name) {
    return std::getenv(name) != nullptr && number(name) == step;
  };
  const int rank = DistributedManager::get().rank();
  if (rank == 1 && is_due("TEST_STOPS")) request_stop(SIGTERM);
  if (rank != 0) return;
  if (is_due("TEST_BREAKS")) {
    if (fs::exists(checkpoints)) fs::rename(checkpoints, checkpoints + ".aside");
    std::ofstream(checkpoints) << "not a directory";
  }
  if (is_due("TEST_MENDS")) {
    fs::remove(checkpoints);
    fs::rename(checkpoints + ".aside", checkpoints);
  }
}

const bool kToyJob = register_rank_function("toy_job", [] {
  if (number("TEST_GENERATION") == 2) await_second_generation();
  const auto agent = own_agent(2);
  DistributedManager::initialize({.agent = agent});
  const std::string directory = std::getenv("TEST_DIRECTORY");
  jobs::TrainingOptions options("toy");
  options.steps = kToySteps;
  options.checkpoint_dir = directory + "/checkpoints";
  options.report = directory + "/report.json";
  options.dump_parameters = directory + "/parameters";
  if (std::getenv("TEST_EVERY") != nullptr) options.checkpoint_every = number("TEST_EVERY");
  options.resume = std::getenv("TEST_RESUMES") != nullptr;
  options.no_evaluation = true;
  ElasticContext elastic;
  elastic.run([&] {
    at::manual_seed(3);
    torch::nn::Linear network(4, 2);
    DyingAdam optimizer(network->parameters(), *agent);
    jobs::Training training(elastic, options, {}, *network, optimizer);
    const jobs::TrainingResult result = training.run([&](int64_t step) {
      meddle(options.checkpoint_dir, step);
      at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
      const at::Tensor x = at::randn({5, 4}, generator);
      // The same gradients on all ranks, and another loss on each.
      return (network(x) - x.slice(1, 0, 2)).square().mean() + DistributedManager::get().rank();
    });
    jobs::Ending ending;
    ending.ranks = "2 ranks";
    ending.rate = "all steps";
    jobs::finish(elastic, options, result, *network, ending);
  });
  DistributedManager::cleanup(true);
});

// One rank, which crashes in step 7 of its first generation, when its checkpoint of step 6 is
// written. The same job is started again, and another job, whose directory has that checkpoint.
const bool kRestartedJob = register_rank_function("restarted_toy_job", [] {
  const auto agent_of = [](const std::string& job, uint64_t generation) {
    return std::make_shared<FakeAgent>(
        agent::Assignment{
            .job_id = job, .generation = generation, .world_size = 1, .local_world_size = 1},
        c10::make_intrusive<c10d::HashStore>());
  };
  const std::string directory = std::getenv("TEST_DIRECTORY");
  jobs::TrainingOptions options("toy");
  options.steps = kToySteps;
  options.checkpoint_dir = directory + "/checkpoints";
  options.checkpoint_every = 2;
  // Returns the first step.
  const auto train_here = [&](int64_t crashes_in) {
    ElasticContext elastic;
    torch::nn::Linear network(4, 2);
    torch::optim::Adam optimizer(network->parameters());
    jobs::Training training(elastic, options, {}, *network, optimizer);
    int64_t first = -1;
    try {
      training.run([&](int64_t step) {
        if (first < 0) first = step;
        if (step == crashes_in) {
          while (!fs::exists(options.checkpoint_dir + "/step-6")) usleep(1000);
          throw std::runtime_error("crash");
        }
        return network(at::ones({5, 4})).square().mean();
      });
      EXPECT_LT(crashes_in, 0);
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "crash");
    }
    return first;
  };
  const auto train = [&](const std::shared_ptr<FakeAgent>& agent, int64_t crashes_in) {
    DistributedManager::initialize({.agent = agent});
    const int64_t first = train_here(crashes_in);
    DistributedManager::cleanup();
    return first;
  };
  const auto begun = agent_of("job", 1);
  EXPECT_EQ(train(begun, 7), 0);
  fs::copy(options.checkpoint_dir, directory + "/foreign", fs::copy_options::recursive);
  const auto again = agent_of("job", 2);
  again->take_commits_of(*begun);
  EXPECT_EQ(train(again, -1), 6);
  options.checkpoint_dir = directory + "/foreign";
  EXPECT_EQ(train(agent_of("other", 2), -1), 0);
});

class ShippedJobTest : public testing::Test {
 protected:
  // Returns the report.
  nlohmann::json run(const std::string& name, const std::vector<Begins>& processes,
                     Variables more) {
    const std::string directory = directory_ + "/" + name;
    fs::create_directories(directory);
    more["TEST_DIRECTORY"] = directory;
    for (const RankResult& result : run_generations("toy_job", processes, more)) {
      EXPECT_EQ(result.exit_code, 0) << result.output;
    }
    return nlohmann::json::parse(std::ifstream(directory + "/report.json"));
  }
  std::string manifest_in(const std::string& name) const {
    return directory_ + "/" + name + "/checkpoints/step-" + std::to_string(kToySteps) +
           "/manifest.json";
  }
  void SetUp() override { fs::remove_all(directory_); }

  const std::string directory_ = testing::TempDir() + "shipped_job";
};

TEST_F(ShippedJobTest, ALossBeforeTheLastCheckpointLeavesItsLossAndTheCheckpoint) {
  const nlohmann::json whole = run("whole", {{0, 1}, {1, 1}}, {});
  EXPECT_EQ(whole.at("first_step"), 0);
  EXPECT_GT(whole.at("last_loss").get<double>(), 0.5) << "the mean of the ranks' losses";
  ASSERT_TRUE(fs::exists(manifest_in("whole")));

  const nlohmann::json after = run("after", {{0, 1}, {1, 1}, {1, 2}}, {{"TEST_DIES", "1"}});
  EXPECT_EQ(after.at("first_step"), kToySteps) << "the loss came after the last update";
  EXPECT_EQ(after.at("last_loss"), whole.at("last_loss"));
  ASSERT_TRUE(fs::exists(manifest_in("after")));
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(manifest_in("after"))).at("step"), kToySteps);

  // A run that goes on where nothing is left to do.
  const nlohmann::json resumed = run("after", {{0, 1}, {1, 1}}, {{"TEST_RESUMES", "1"}});
  EXPECT_EQ(resumed.at("first_step"), kToySteps);
  EXPECT_EQ(resumed.at("last_loss"), whole.at("last_loss"));
}

TEST_F(ShippedJobTest, ALastCheckpointThatIsNotWrittenIsAnErrorBehindReportAndParameters) {
  const std::string directory = directory_ + "/unsaved";
  fs::create_directories(directory);
  const auto ranks = run_generations("toy_job", {{0, 1}, {1, 1}},
                                     {{"TEST_DIRECTORY", directory}, {"TEST_BREAKS", "11"}});
  for (const RankResult& rank : ranks) {
    EXPECT_NE(rank.exit_code, 0) << rank.output;
    EXPECT_THAT(rank.output, HasSubstr("escaped: the checkpoint of step 13 is not written: "));
    EXPECT_THAT(rank.output, HasSubstr(directory + "/checkpoints"));
  }
  EXPECT_THAT(ranks[0].output,
              AllOf(HasSubstr("toy: the checkpoint of step 13 is not written: "),
                    HasSubstr("; the job fails when its other files are written\n"),
                    HasSubstr("toy: report " + directory + "/report.json\n")));
  const auto report = nlohmann::json::parse(std::ifstream(directory + "/report.json"));
  EXPECT_EQ(report.at("steps"), kToySteps);
  for (const char* const rank : {"0", "1"}) {
    EXPECT_TRUE(fs::exists(directory + "/parameters-rank-" + rank + ".safetensors"));
  }
}

TEST_F(ShippedJobTest, ACheckpointOnTheWayThatIsNotWrittenIsSaidOnce) {
  const std::string directory = directory_ + "/on_the_way";
  fs::create_directories(directory);
  const auto ranks = run_generations("toy_job", {{0, 1}, {1, 1}},
                                     {{"TEST_DIRECTORY", directory},
                                      {"TEST_EVERY", "2"},
                                      {"TEST_BREAKS", "3"},
                                      {"TEST_MENDS", "9"}});
  for (const RankResult& rank : ranks) EXPECT_EQ(rank.exit_code, 0) << rank.output;
  const std::string& said = ranks[0].output;
  const std::string warning = " is not written: ";
  const size_t first = said.find(warning);
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_THAT(said, HasSubstr("; training goes on and tries again\n"));
  EXPECT_EQ(said.find(warning, first + 1), std::string::npos) << said;
  // That of step 8 may still be on its way when the directory is there again.
  EXPECT_THAT(
      said, ContainsRegex("toy: the checkpoint of step (8|10) is written, the first one again\n"));
  EXPECT_THAT(ranks[1].output, Not(HasSubstr(warning)));
}

TEST_F(ShippedJobTest, AStopThatCannotSaveIsNoOrderlyOne) {
  const std::string directory = directory_ + "/stopped";
  fs::create_directories(directory);
  const auto ranks =
      run_generations("toy_job", {{0, 1}, {1, 1}},
                      {{"TEST_DIRECTORY", directory}, {"TEST_BREAKS", "5"}, {"TEST_STOPS", "5"}});
  for (const RankResult& rank : ranks) {
    EXPECT_NE(rank.exit_code, 0) << rank.output;
    EXPECT_THAT(rank.output, HasSubstr("escaped: the checkpoint of step 10 is not written: "));
    EXPECT_THAT(rank.output, HasSubstr(directory + "/checkpoints"));
  }
  EXPECT_FALSE(fs::exists(directory + "/parameters-rank-0.safetensors")) << "not at its end";
}

TEST_F(ShippedJobTest, ARestartedJobGoesOnFromItsOwnCheckpointAndReadsNoForeignOne) {
  fs::create_directories(directory_);
  const RankResult result = run_ranks("restarted_toy_job", {{{"TEST_DIRECTORY", directory_}}})[0];
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const size_t goes_on =
      result.output.find("toy: goes on after step 6, as in the newest checkpoint of this job in " +
                         directory_ + "/checkpoints\n");
  const size_t begins =
      result.output.find("toy: begins with step 0 again: this job has no checkpoint in " +
                         directory_ + "/foreign yet");
  EXPECT_LT(goes_on, begins) << result.output;
  EXPECT_NE(begins, std::string::npos) << result.output;
}

}  // namespace
}  // namespace meshrun
