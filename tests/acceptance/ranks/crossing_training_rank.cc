// A rank of a data-parallel training on hosts that are network namespaces: on rank 0 prints what a step sends between
// the hosts and how long it takes, with gradients of float32 and, over ucx, of bfloat16. One JSON object a line.
//
// usage: crossing_training_rank INTERFACE, the one by which this host reaches the others
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/distributed_data_parallel.h"
#include "parallel/nn/fully_connected.h"
#include "tests/acceptance/ranks/interface_bytes.h"

namespace meshrun {
namespace {

constexpr int64_t kFeatures = 1024;
constexpr int kLayers = 3;
constexpr int kSteps = 6;

void train(DistributedManager& manager, const std::string& interface, bool bfloat16) {
  torch::manual_seed(0);
  FullyConnected network(FullyConnectedOptions()
                             .in_features(kFeatures)
                             .layer_size(kFeatures)
                             .out_features(kFeatures)
                             .num_layers(kLayers));
  double bytes_of_gradients = 0;
  for (const at::Tensor& parameter : network->parameters()) {
    bytes_of_gradients += static_cast<double>(parameter.nbytes());
  }
  DistributedDataParallel model(network,
                                {.broadcast_buffers = false, .bfloat16_gradients = bfloat16});
  torch::optim::SGD optimizer(model->parameters(), 1e-3);
  const at::Tensor input = torch::randn({8, kFeatures});
  int64_t least = 0;
  double seconds = 0;
  for (int step = 0; step <= kSteps; ++step) {
    const int64_t before = bytes_sent_by_all(manager, interface);
    manager.group()->barrier()->wait();
    const auto begin = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    model(input).square().mean().backward();
    optimizer.step();
    manager.group()->barrier()->wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const int64_t bytes = bytes_sent_by_all(manager, interface) - before;
    if (step < 2) continue;  // connects, and cuts the buckets anew
    if (step == 2 || bytes < least) least = bytes;
    if (step == 2 || took.count() < seconds) seconds = took.count();
  }
  if (manager.rank() != 0) return;
  // Partial sums and results, both in the type of the gradients.
  const double must = (bfloat16 ? 1 : 2) * (count_hosts(manager) - 1) * bytes_of_gradients;
  std::puts(nlohmann::json{{"name", bfloat16 ? "bfloat16" : "float32"},
                           {"bytes", least},
                           {"must", must},
                           {"share", static_cast<double>(least) / must},
                           {"seconds", seconds}}
                .dump()
                .c_str());
}

int run(const std::string& interface) {
  DistributedManager::initialize();
  at::set_num_threads(1);
  auto& manager = DistributedManager::get();
  train(manager, interface, /*bfloat16=*/false);
  const char* backend = std::getenv("MESHRUN_BACKEND");
  if (backend == nullptr || std::string_view(backend) != "gloo") {
    train(manager, interface, /*bfloat16=*/true);
  }
  DistributedManager::cleanup(true);
  return 0;
}

}  // namespace
}  // namespace meshrun

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: crossing_training_rank INTERFACE\n", stderr);
    return 2;
  }
  try {
    return meshrun::run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "crossing_training_rank: %s\n", error.what());
    return 1;
  }
}
