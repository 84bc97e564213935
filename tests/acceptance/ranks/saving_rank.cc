// A rank whose state is a function of the step, which saves it every few steps and is killed at any
// moment; run by tests/acceptance/checkpoints.
//
//   saving_rank DIRECTORY STEPS [async] [elastic] [verify]
//
// When a checkpoint is durable rank 0 appends its step to DIRECTORY/announced. A rank that loads
// one, or goes on from memory, compares every element with what the step must have made, and ends
// with exit code 9 where one differs, or where the step is below the newest announced one.
// `verify`: load, compare, print the step and end.
#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/elastic/elastic_context.h"
#include "parallel/elastic/elastic_state.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/optimizer_state.h"

namespace meshrun {
namespace {

constexpr int64_t kEvery = 3;
constexpr int kWrong = 9;

struct Model : torch::nn::Module {
  Model() {
    for (int i = 0; i < 12; ++i) {
      register_parameter("layer" + std::to_string(i), at::zeros({256, 1024 + i}));
    }
  }
};

double value(int64_t step, size_t layer) {
  return static_cast<double>(step) + static_cast<double>(layer) / 16;
}

// What the step makes of the state.
void make(Model& model, torch::optim::Optimizer& optimizer, int64_t step) {
  const at::NoGradGuard no_grad;
  const auto parameters = model.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].fill_(value(step, i));
    const ParameterState state = parameter_state(optimizer, parameters[i]);
    state.moments.at("exp_avg").fill_(2 * value(step, i));
    state.moments.at("exp_avg_sq").fill_(3 * value(step, i));
  }
}

void compare(const Model& model, torch::optim::Optimizer& optimizer, int64_t step) {
  const auto parameters = model.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ParameterState state = parameter_state(optimizer, parameters[i]);
    const bool is_right = (parameters[i] == value(step, i)).all().item<bool>() &&
                          (state.moments.at("exp_avg") == 2 * value(step, i)).all().item<bool>() &&
                          (state.moments.at("exp_avg_sq") == 3 * value(step, i)).all().item<bool>();
    if (is_right) continue;
    std::fprintf(stderr, "WRONG: layer %zu is not what step %lld made\n", i,
                 static_cast<long long>(step));
    std::_Exit(kWrong);
  }
}

int64_t newest_announced(const std::string& directory) {
  std::ifstream file(directory + "/announced");
  int64_t newest = 0;
  for (int64_t step = 0; file >> step;) newest = std::max(newest, step);
  return newest;
}

struct Options {
  std::string directory;
  int64_t steps = 0;
  bool is_async = false;
  bool is_elastic = false;
  bool verifies = false;
};

void train(const Options& options, ElasticContext& elastic) {
  Model model;
  torch::optim::Adam optimizer(model.parameters());
  for (const at::Tensor& parameter : model.parameters()) {
    set_parameter_state(optimizer, parameter,
                        {0,
                         {{"exp_avg", at::zeros_like(parameter.detach())},
                          {"exp_avg_sq", at::zeros_like(parameter.detach())}}});
  }
  make(model, optimizer, 0);
  CheckpointDirectory checkpoints(options.directory + "/run", {});
  ElasticState state(elastic, model, optimizer);
  const bool leads = DistributedManager::get().rank() == 0;
  // Before anybody announces another one.
  const int64_t announced = newest_announced(options.directory);
  int64_t first = 0;
  if (const auto done = options.is_elastic ? state.restore() : std::nullopt) {
    first = *done;
  } else if (const auto saved = checkpoints.load(model, optimizer)) {
    first = saved->step;
    if (first < announced) {
      std::fprintf(stderr, "WRONG: step %lld is loaded, and %lld was announced\n",
                   static_cast<long long>(first), static_cast<long long>(announced));
      std::_Exit(kWrong);
    }
  } else if (announced > 0) {
    std::fprintf(stderr, "WRONG: nothing is loaded, and %lld was announced\n",
                 static_cast<long long>(announced));
    std::_Exit(kWrong);
  }
  compare(model, optimizer, first);
  if (options.verifies) {
    if (leads) std::printf("%lld\n", static_cast<long long>(first));
    return;
  }
  const auto announce = [&](int64_t step) {
    if (!leads) return;
    std::ofstream file(options.directory + "/announced", std::ios::app);
    file << step << std::endl;
  };
  if (!options.is_elastic) state.restore();
  state.commit(first);
  int64_t writing = 0;
  for (int64_t step = first + 1; step <= options.steps; ++step) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    state.update([&] { make(model, optimizer, step); });
    if (step % kEvery != 0) continue;
    if (options.is_async) {
      checkpoints.wait();
      if (writing > 0) announce(writing);
      checkpoints.save_async(model, optimizer, {step, {}});
      writing = step;
    } else {
      checkpoints.save(model, optimizer, {step, {}});
      announce(step);
    }
  }
  checkpoints.wait();
  if (writing > 0) announce(writing);
}

}  // namespace
}  // namespace meshrun

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: saving_rank DIRECTORY STEPS [async] [elastic] [verify]\n");
    return 2;
  }
  const std::set<std::string> words(argv + 3, argv + argc);
  const meshrun::Options options{argv[1], std::stoll(argv[2]), words.contains("async"),
                                 words.contains("elastic"), words.contains("verify")};
  meshrun::DistributedManager::initialize();
  meshrun::ElasticContext elastic;
  elastic.run([&] { meshrun::train(options, elastic); });
  meshrun::DistributedManager::cleanup();
  return 0;
}
