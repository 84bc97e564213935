#include "jobs/verify/persistence.h"

#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>

#include "ATen/Context.h"
#include "ATen/Functions.h"
#include "jobs/runtime/words.h"
#include "jobs/verify/comparison.h"
#include "parallel/base/split.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/elastic/elastic_state.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::verify {
namespace {

using Seconds = std::chrono::duration<double>;
using std::chrono::steady_clock;

constexpr int64_t kWidth = 1600;  // 10 MB of parameters, 30 MB with Adam's moments
constexpr double kCheckpointBytes = 3.0 * 4 * (kWidth * kWidth + kWidth);

struct Model {
  explicit Model(uint64_t seed)
      : network((at::manual_seed(seed), torch::nn::LinearOptions(kWidth, kWidth))),
        optimizer(network->parameters(), torch::optim::AdamOptions(1e-3)) {
    network->to(DistributedManager::get().device());
  }
  void step() {
    for (at::Tensor& parameter : network->parameters()) {
      parameter.mutable_grad() = parameter.detach() * 0.5;
    }
    optimizer.step();
  }
  torch::nn::Linear network;
  torch::optim::Adam optimizer;
};

std::string unequal_models(const Model& found, const Model& expected) {
  const auto ours = found.network->named_parameters();
  for (const auto& item : expected.network->named_parameters()) {
    const std::string problem = unequal(ours[item.key()], item.value());
    if (!problem.empty()) return item.key() + ": " + problem;
  }
  return "";
}

// ---- recovery

constexpr int64_t kSteps = 20;
constexpr int64_t kLossAfter = 10;
constexpr int64_t kBatch = 64;

at::Tensor batch_of(int64_t step) {
  at::manual_seed(static_cast<uint64_t>(step) + 1000);
  return at::randn({kBatch, 8});
}

at::Tensor loss_of(torch::nn::LinearImpl& network, const at::Tensor& x) {
  return (network.forward(x) - x.sin()).square().sum() / static_cast<double>(kBatch);
}

struct SmallTraining {
  SmallTraining()
      : network((at::manual_seed(17), torch::nn::LinearOptions(8, 8))),
        optimizer(network->parameters(), torch::optim::AdamOptions(1e-2)) {}
  torch::nn::Linear network;
  torch::optim::Adam optimizer;
};

// In one process.
torch::nn::Linear undisturbed() {
  SmallTraining training;
  for (int64_t step = 0; step < kSteps; ++step) {
    training.optimizer.zero_grad();
    loss_of(*training.network, batch_of(step)).backward();
    training.optimizer.step();
  }
  return training.network;
}

}  // namespace

void check_checkpoint(Stage& stage, const std::string& directory) {
  const std::string what = "saved and read back";
  std::vector<double> took = {0, 0};
  std::optional<Model> saved, read;
  const auto save_and_load = [&]() -> std::string {
    saved.emplace(1);
    saved->step();
    CheckpointDirectory checkpoints(directory, {.timeout = std::chrono::seconds(30)});
    const auto start = steady_clock::now();
    checkpoints.save(*saved->network, saved->optimizer, {.step = 1});
    const auto middle = steady_clock::now();
    read.emplace(2);
    const auto found = checkpoints.load(*read->network, read->optimizer);
    took = {Seconds(middle - start).count(), Seconds(steady_clock::now() - middle).count()};
    if (!found || found->step != 1) return "the checkpoint that was saved is not found again";
    if (std::string problem = unequal_models(*read, *saved); !problem.empty()) return problem;
    // The moments, too.
    saved->step();
    read->step();
    std::string problem = unequal_models(*read, *saved);
    return problem.empty() ? "" : "a step later " + problem;
  };
  const bool is_well = stage.check(what, save_and_load, [&] {
    return jobs::format("%.0f MB by ", kCheckpointBytes / 1e6) +
           jobs::ranks(stage.exchange().size()) + ", every bit, and the next step's";
  });
  // The directory goes when all have read.
  stage.exchange().meet();
  if (!is_well || !stage.is_first()) return;
  stage.judge("rate of the file system", judge_files(kCheckpointBytes, took[0], took[1]),
              {{"bytes", kCheckpointBytes}, {"write_seconds", took[0]}, {"read_seconds", took[1]}});
}

std::string why_no_recovery() {
  DistributedManager& manager = DistributedManager::get();
  if (manager.agent() == nullptr) {
    return "only meshrun's daemon starts a rank again: 'meshrun verify' without srun or mpirun, or "
           "'meshrun submit --job verify'";
  }
  if (manager.world_size() == 1) return "nobody goes on where the only rank is lost";
  const char* const restarts = std::getenv("TORCHELASTIC_MAX_RESTARTS");
  if (restarts != nullptr && std::string(restarts) == "0") {
    return "the job may not start a rank again: submit it with --max-restarts 1";
  }
  return "";
}

void move_to_ucx() {
  DistributedManager& manager = DistributedManager::get();
  if (manager.backend() == "ucx") return;
  const std::string method = manager.initialization_method();
  std::shared_ptr<agent::Agent> agent = manager.shared_agent();
  DistributedManager::cleanup(/*barrier=*/true);
  DistributedManager::initialize({.backend = "ucx", .method = method, .agent = agent});
}

void check_recovery(Stage& stage, ElasticContext& elastic,
                    std::optional<steady_clock::time_point> killed) {
  DistributedManager& manager = DistributedManager::get();
  SmallTraining training;
  ElasticState state(elastic, *training.network, training.optimizer);
  const std::optional<int64_t> restored = state.restore();
  const auto back = steady_clock::now();
  const SplitRange own = split_range(kBatch, manager.world_size(), manager.rank());
  for (const int64_t step : state.steps(restored.value_or(0), kSteps)) {
    training.optimizer.zero_grad();
    loss_of(*training.network, batch_of(step).narrow(0, own.begin, own.size())).backward();
    for (at::Tensor& parameter : training.network->parameters()) {
      std::vector<at::Tensor> gradients = {parameter.grad()};
      manager.world()->allreduce(gradients)->wait();
    }
    state.update([&] { training.optimizer.step(); });
    if (!killed && step + 1 == kLossAfter && manager.rank() == manager.world_size() - 1) {
      ::kill(::getpid(), SIGKILL);
    }
  }
  stage.check(
      "a rank is killed, and the job goes on",
      [&]() -> std::string {
        if (!killed) return "the killed rank is still there";
        if (!restored) return "the training has begun again: no rank had kept its state";
        const torch::nn::Linear expected = undisturbed();
        const std::string problem =
            unlike(training.network->weight, expected->weight, /*limit=*/1e-4);
        return problem.empty() ? "" : "weights against an undisturbed training: " + problem;
      },
      [&] {
        return jobs::format("rank %d was back after ", manager.world_size() - 1) +
               time_text(Seconds(back - *killed).count()) +
               jobs::format(", step %.0f followed", static_cast<double>(*restored + 1)) +
               ", and the weights are those of an undisturbed training";
      });
}

}  // namespace meshrun::verify
