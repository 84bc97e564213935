// A rank that saves and loads a large state, and says what it took; run by
// tests/acceptance/checkpoints beside checkpoints_items/dcp_rank.py, which does the same with
// torch.distributed.checkpoint.
//
//   checkpoint_rank DIRECTORY MEGABYTES
//
// Reads commands from stdin, so that both sides can take turns: "save", "async", "load", "end".
// After each it prints a line of JSON: seconds of the call, seconds until all is written, the
// growth of this process's peak in bytes, and what was raised.
#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun {
namespace {

using std::chrono::steady_clock;

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

// kB of a line of /proc/self/status.
int64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

double seconds_since(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

void run(const std::string& directory, int64_t bytes) {
  DistributedManager::initialize();
  DistributedManager& manager = DistributedManager::get();
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
    manager.world()->barrier()->wait();
    std::ofstream("/proc/self/clear_refs") << "5";
    const int64_t before = status_bytes("VmRSS:");
    const auto begin = steady_clock::now();
    double call = 0;
    std::string raised;
    try {
      if (command == "save") checkpoints.save(model, optimizer, {step + 1, {}});
      if (command == "async") checkpoints.save_async(model, optimizer, {step + 1, {}});
      if (command == "load") checkpoints.load(model, optimizer);
      call = seconds_since(begin);
      checkpoints.wait();
      if (command != "load") ++step;
    } catch (const CheckpointError& error) {
      raised = error.what_without_backtrace();
    }
    std::cout << nlohmann::json({{"call", call},
                                 {"whole", seconds_since(begin)},
                                 {"peak", status_bytes("VmHWM:") - before},
                                 {"raised", raised}})
                     .dump()
              << std::endl;
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
