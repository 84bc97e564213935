// A rank of a data-parallel training on hosts that are network namespaces: on rank 0 prints what a
// step sends between the hosts and how long it takes, with gradients of float32 and, over ucx, of
// bfloat16. One JSON object a line.
//
// usage: crossing_training_rank INTERFACE [ROWS]
//   INTERFACE  by which this host reaches the others
//   ROWS       of a rank's batch: only float32, in buckets of 4 MiB, so that some of it can overlap
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
constexpr int64_t kRows = 8;

void train(DistributedManager& manager, const std::string& interface, int64_t rows,
           DistributedDataParallelOptions options) {
  const bool bfloat16 = options.bfloat16_gradients;
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
  options.broadcast_buffers = false;
  DistributedDataParallel model(network, options);
  torch::optim::SGD optimizer(model->parameters(), 1e-3);
  const at::Tensor input = torch::randn({rows, kFeatures});
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

int run(const std::string& interface, int64_t rows) {
  DistributedManager::initialize();
  at::set_num_threads(1);
  auto& manager = DistributedManager::get();
  if (rows > 0) {
    train(manager, interface, rows, {.bucket_cap_mb = 4});
  } else {
    train(manager, interface, kRows, {});
    const char* backend = std::getenv("MESHRUN_BACKEND");
    if (backend == nullptr || std::string_view(backend) != "gloo") {
      train(manager, interface, kRows, {.bfloat16_gradients = true});
    }
  }
  DistributedManager::cleanup(true);
  return 0;
}

}  // namespace
}  // namespace meshrun

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fputs("usage: crossing_training_rank INTERFACE [ROWS]\n", stderr);
    return 2;
  }
  try {
    return meshrun::run(argv[1], argc == 3 ? std::stoll(argv[2]) : 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "crossing_training_rank: %s\n", error.what());
    return 1;
  }
}
