// A training with most of what a training has: Adam, a schedule, dropout on plain and on sharded
// tensors, an average of the parameters, accumulation over two micro-batches, a metric of all
// ranks, checkpoints, and an end that reports, prints and cleans up. It ends itself at the
// statement that MESHRUN_KILL_AT names (kill_points.h). In double, so that worlds of different
// sizes can be compared.
//
//   loop_training --directory DIR --name NAME [--steps N] [--save-every N]
//                 [--seeds step|alike|rank] [--dropout P] [--sharded-dropout P]
//
// Goes on from memory, else from the newest checkpoint in DIR/NAME. Each rank leaves its parameters
// in DIR/NAME-rank-R.safetensors, their average in DIR/NAME-average-rank-R.safetensors, and a line
// of JSON in DIR/NAME.places for each world that it trained in. Rank 0 prints one line.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/agent.h"
#include "parallel/base/split.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/collectives/fused_all_reduce.h"
#include "parallel/elastic/elastic_context.h"
#include "parallel/elastic/elastic_state.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/distributed_data_parallel.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/acceptance/ranks/kill_points.h"
#include "tests/acceptance/ranks/killed_agent.h"

namespace meshrun::acceptance {
namespace {

using torch::Tensor;

// Rows of a micro-batch; worlds of 1, 2, 3 and 6 ranks divide them.
constexpr int64_t kRows = 6;
constexpr int64_t kMicroBatches = 2;
constexpr int64_t kInputs = 5, kHidden = 16;
constexpr int64_t kSeed = 17;

struct Options {
  std::string directory, name;
  int64_t steps = 12;
  int64_t save_every = 0;
  std::string seeds = "step";
  double dropout = 0.25;
  double sharded_dropout = 0.25;
};

// Takes the rows of a micro-batch that this rank has.
struct NetworkImpl : torch::nn::Module {
  NetworkImpl(double plain_rate, double sharded_rate) : plain(plain_rate), sharded(sharded_rate) {
    first = register_module("first", torch::nn::Linear(kInputs, kHidden));
    middle = register_module("middle", torch::nn::Linear(kHidden, kHidden));
    last = register_module("last", torch::nn::Linear(kHidden, kInputs));
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& rows) {
    Tensor x = at::dropout(at::tanh(first(rows)), plain, /*train=*/true);
    x = at::tanh(middle(x));
    if (sharded > 0) {
      const ShardTensor all =
          ShardTensor::from_local(x, std::nullopt, Placements{Shard(0)}, ShardingShapes::chunk(),
                                  std::vector<int64_t>{kRows, kHidden});
      x = ShardTensor(at::dropout(all, sharded, /*train=*/true)).to_local();
    }
    return last(x);
  }

  const double plain, sharded;
  torch::nn::Linear first = nullptr, middle = nullptr, last = nullptr;
};
TORCH_MODULE(Network);

class Training {
 public:
  Training(const Options& options, ElasticContext& elastic, const KillPoints& points)
      : options_(options),
        elastic_(elastic),
        points_(points),
        checkpoints_(options.directory + "/" + options.name, {}) {
    state_.keep("scheduler", scheduler_);
    state_.keep("average", *average_);
    const int rank = DistributedManager::get().rank();
    if (options.seeds == "step") state_.seed_each_step(kSeed);
    if (options.seeds == "alike") torch::manual_seed(kSeed);
    if (options.seeds == "rank") torch::manual_seed(kSeed + 1 + rank);
  }

  void run() {
    std::string source = "memory";
    std::optional<int64_t> done = state_.restore();
    if (!done) {
      const auto saved = checkpoints_.load(*network_, optimizer_, state_.kept());
      source = saved ? "checkpoint" : "nothing";
      done = saved ? saved->step : 0;
    }
    write_place(source, *done);
    DistributedDataParallel model(network_, {.broadcast_buffers = false});
    for (const int64_t step : state_.steps(*done, options_.steps)) take_step(step, model);
    end();
  }

 private:
  using Model = DistributedDataParallel<NetworkImpl>;

  // This rank's share of the loss of a micro-batch; the mean of the shares is the loss.
  template <typename Forward>
  static Tensor share_of_loss(int64_t step, int64_t micro, const Forward& forward) {
    const DistributedManager& manager = DistributedManager::get();
    const SplitRange own = split_range(kRows, manager.world_size(), manager.rank());
    at::Generator numbers =
        at::detail::createCPUGenerator(static_cast<uint64_t>(100 * step + micro));
    const Tensor all = at::randn({kRows, kInputs}, numbers, at::TensorOptions(at::kDouble));
    const Tensor x = all.narrow(0, own.begin, own.size());
    return (forward(x) - x.sin()).square().sum() *
           (static_cast<double>(manager.world_size()) /
            static_cast<double>(kMicroBatches * all.numel()));
  }

  void take_step(int64_t step, Model& model) {
    const auto pass = [&](const char* statement) { points_.pass(step, statement); };
    const auto share = [&](int64_t micro) {
      return share_of_loss(step, micro, [&](const Tensor& x) { return model(x); });
    };
    pass("begin");
    optimizer_.zero_grad();
    pass("zeroed");
    Tensor metric;
    {
      const NoSyncGuard guard = model->no_sync();
      const Tensor first = share(0);
      pass("forward");
      first.backward();
      metric = first.detach();
    }
    pass("accumulated");
    const Tensor second = share(1);
    pass("second-forward");
    second.backward();
    pass("backward");
    state_.update([&] {
      pass("update");
      optimizer_.step();
      pass("optimizer");
      scheduler_.step();
      pass("scheduler");
      follow();
      pass("average");
    });
    pass("updated");
    metric = fused_all_reduce(metric + second.detach(), {.op = c10d::ReduceOp::AVG});
    pass("metric");
    if (agent::Agent* const agent = DistributedManager::get().agent()) {
      agent->Report({.step = step + 1,
                     .total_steps = options_.steps,
                     .loss = metric.item<double>(),
                     .metrics = {},
                     .note = ""});
    }
    pass("reported");
    if (options_.save_every > 0 && (step + 1) % options_.save_every == 0) {
      checkpoints_.save(*network_, optimizer_, {step + 1}, state_.kept());
      pass("saved");
    }
  }

  // The average of the parameters over the steps.
  void follow() {
    const torch::NoGradGuard no_grad;
    const std::vector<Tensor> newest = network_->parameters();
    const std::vector<Tensor> average = average_->parameters();
    for (size_t i = 0; i < newest.size(); ++i) average[i].mul_(0.9).add_(newest[i], 0.1);
  }

  // What comes after the loop. A rank that is killed here before any has reported its end leaves
  // the others to do all of it again.
  void end() {
    DistributedManager& manager = DistributedManager::get();
    points_.pass_at_end("loop");
    Tensor loss;
    {
      const torch::NoGradGuard no_grad;
      loss = share_of_loss(options_.steps, 0, [&](const Tensor& x) { return average_(x); });
    }
    loss = fused_all_reduce(loss, {.op = c10d::ReduceOp::AVG});
    points_.pass_at_end("evaluated");
    const std::string file = options_.directory + "/" + options_.name;
    const std::string end = "rank-" + std::to_string(manager.rank()) + ".safetensors";
    write_parameters(file + "-" + end, *network_);
    write_parameters(file + "-average-" + end, *average_);
    points_.pass_at_end("written");
    const std::string result = "result of " + options_.name + ": " +
                               std::to_string(options_.steps) + " steps, loss " +
                               std::to_string(loss.item<double>());
    const bool is_first = manager.rank() == 0;
    if (is_first && manager.agent() != nullptr) {
      // meshrun describe shows it where this rank cannot print any more.
      const absl::Status said = manager.agent()->ReportReliably({.step = options_.steps,
                                                                 .total_steps = options_.steps,
                                                                 .loss = loss.item<double>(),
                                                                 .metrics = {},
                                                                 .note = result});
      if (!said.ok()) std::fprintf(stderr, "no report: %s\n", std::string(said.message()).c_str());
    }
    points_.pass_at_end("told");
    elastic_.at_end([result, is_first, &points = points_] {
      points.pass_at_end("printing");
      if (is_first) {
        std::puts(result.c_str());
        std::fflush(stdout);
      }
      points.pass_at_end("printed");
    });
  }

  void write_place(const std::string& source, int64_t done) const {
    const DistributedManager& manager = DistributedManager::get();
    nlohmann::json place = {{"rank", manager.rank()},
                            {"world", manager.world_size()},
                            {"pid", getpid()},
                            {"source", source},
                            {"done", done}};
    if (agent::Agent* const agent = manager.agent()) {
      place["generation"] = agent->assignment().generation;
      place["node"] = agent->assignment().node_name;
    }
    std::ofstream file(options_.directory + "/" + options_.name + ".places", std::ios::app);
    file << place.dump() + "\n" << std::flush;
  }

  const Options& options_;
  ElasticContext& elastic_;
  const KillPoints& points_;
  CheckpointDirectory checkpoints_;
  Network network_{options_.dropout, options_.sharded_dropout};
  Network average_{0.0, 0.0};
  torch::optim::Adam optimizer_{network_->parameters(), torch::optim::AdamOptions(0.02)};
  torch::optim::StepLR scheduler_{optimizer_, /*step_size=*/5, /*gamma=*/0.5};
  // Last, so that it ends first: it keeps the others' state for the next world.
  ElasticState state_{elastic_, *network_, optimizer_};
};

KillPoints& points() {
  static auto* points = new KillPoints;
  return *points;
}

std::shared_ptr<agent::Agent> connect() {
  if (std::getenv("MESHRUN_AGENT") == nullptr) return nullptr;
  auto connected = agent::Agent::Connect();
  TORCH_CHECK(connected.ok(), connected.status().ToString());
  return std::make_shared<KilledAgent>(*std::move(connected), points());
}

void enter() {
  const DistributedManager& manager = DistributedManager::get();
  agent::Agent* const agent = manager.agent();
  points().enter(agent == nullptr ? 1 : agent->assignment().generation, manager.rank());
}

void leave() {
  points().pass_at_end("left");
  std::thread killer;
  if (points().is_due_at_end("cleanup")) {
    // While this rank waits for the others in there.
    killer = std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      points().pass_at_end("cleanup");
    });
  } else if (points().is_used_at_end("cleanup")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  DistributedManager::cleanup(/*barrier=*/true);
  if (killer.joinable()) killer.join();
  points().pass_at_end("cleaned");
}

void run(const Options& options) {
  torch::set_num_threads(1);
  std::atexit([] { points().pass_at_end("exit"); });
  DistributedManager::initialize({.agent = connect()});
  enter();
  {
    ElasticContext elastic({.on_joined = enter, .log = {}});
    elastic.run([&] {
      torch::manual_seed(4);
      Training(options, elastic, points()).run();
    });
  }
  leave();
}

}  // namespace
}  // namespace meshrun::acceptance

int main(int argc, char** argv) {
  meshrun::acceptance::Options options;
  CLI::App app("A training that ends itself where it is told to.", "loop_training");
  app.add_option("--directory", options.directory, "Of all that it writes")->required();
  app.add_option("--name", options.name, "Of this run's files")->required();
  app.add_option("--steps", options.steps, "In all");
  app.add_option("--save-every", options.save_every, "Steps between checkpoints; 0: none");
  app.add_option("--seeds", options.seeds, "Of each step, of all ranks alike, or of each rank")
      ->check(CLI::IsMember({"step", "alike", "rank"}));
  app.add_option("--dropout", options.dropout, "Of a plain tensor");
  app.add_option("--sharded-dropout", options.sharded_dropout, "Of a sharded one");
  CLI11_PARSE(app, argc, argv);
  try {
    meshrun::acceptance::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "loop_training: %s\n", error.what());
    return 1;
  }
}
