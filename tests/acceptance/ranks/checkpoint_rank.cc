// A rank that saves and loads a large state, and says what it took; run by
// tests/acceptance/checkpoints beside checkpoints_items/dcp_rank.py, which does the same with
// torch.distributed.checkpoint.
//
//   checkpoint_rank DIRECTORY MEGABYTES
//
// Reads commands from stdin, so that both sides can take turns: "save", "async", "load", "end".
// After each it prints a line of JSON, which measured_command.h has.
#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/manager/distributed_manager.h"
#include "tests/acceptance/ranks/measured_command.h"

namespace meshrun {
namespace {

// As large as a weight of a large layer.
constexpr int64_t kTensorBytes = int64_t{16} << 20;

struct LargeModel : torch::nn::Module {
  explicit LargeModel(int64_t bytes) {
    for (int64_t i = 0; i * kTensorBytes < bytes; ++i) {
      register_parameter("layer" + std::to_string(i),
                         at::full({2048, kTensorBytes / 4 / 2048}, 0.5 + static_cast<double>(i)));
    }
  }
};

void run(const std::string& directory, int64_t bytes) {
  DistributedManager::initialize();
  LargeModel model(bytes);
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(0.01));
  for (const at::Tensor& parameter : model.parameters()) {
    parameter.mutable_grad() = at::ones_like(parameter);
  }
  optimizer.step();
  optimizer.zero_grad();
  CheckpointDirectory checkpoints(directory, {});
  int64_t step = 0;
  std::cout << "ready" << std::endl;
  for (std::string command; std::getline(std::cin, command) && command != "end";) {
    const nlohmann::json said = measured(
        [&] {
          if (command == "save") checkpoints.save(model, optimizer, {step + 1, {}});
          if (command == "async") checkpoints.save_async(model, optimizer, {step + 1, {}});
          if (command == "load") checkpoints.load(model, optimizer);
        },
        [&] { checkpoints.wait(); });
    if (command != "load" && said["raised"] == "") ++step;
    std::cout << said.dump() << std::endl;
  }
  DistributedManager::cleanup();
}

}  // namespace
}  // namespace meshrun

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: checkpoint_rank DIRECTORY MEGABYTES\n");
    return 2;
  }
  meshrun::run(argv[1], std::stoll(argv[2]) << 20);
  return 0;
}
