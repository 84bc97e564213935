// A convolutional network on fields that the ranks share by rows: halos, batch normalization over
// all ranks, accumulation, a head that nothing uses, a schedule, checkpoints, a graceful stop. In
// double, so that worlds can be compared to the last digits.
//
//   field_training STEPS DIRECTORY NAME [STOP_AFTER]    STOP_AFTER: the last rank asks to stop then
//
// Goes on from the checkpoint in DIRECTORY/NAME, and leaves one there when it ends.
#include <torch/torch.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "agent/agent.h"
#include "parallel/base/split.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/collectives/halo_exchange.h"
#include "parallel/elastic/graceful_stop.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/distributed_data_parallel.h"
#include "parallel/nn/sync_batch_norm.h"

namespace {

using torch::Tensor;

constexpr int64_t kFields = 3, kChannels = 4, kRows = 11, kColumns = 6;
constexpr int64_t kMicroBatches = 2;
constexpr const char* kSpatial = "spatial";

// Periodic in both directions. The ranks of `spatial` have rows of every field.
struct NetworkImpl : torch::nn::Module {
  NetworkImpl() {
    using torch::nn::Conv2dOptions;
    first = register_module("first", torch::nn::Conv2d(Conv2dOptions(1, kChannels, {5, 3})));
    norm = register_module("norm", meshrun::SyncBatchNorm(torch::nn::BatchNormOptions(kChannels)));
    second = register_module("second", torch::nn::Conv2d(Conv2dOptions(kChannels, kChannels, 3)));
    converted = register_module("converted", torch::nn::BatchNorm2d(kChannels));
    last = register_module("last", torch::nn::Conv2d(Conv2dOptions(kChannels, 1, 1)));
    unused = register_module("unused", torch::nn::Linear(3, 2));
  }
  Tensor forward(const Tensor& piece, const std::vector<int64_t>& sizes) {
    const auto padded = [&](const Tensor& x, int64_t rows) {
      const Tensor tall = meshrun::halo_exchange(x, 2, {rows, rows}, sizes, true, kSpatial);
      return torch::nn::functional::pad(
          tall, torch::nn::functional::PadFuncOptions({1, 1, 0, 0}).mode(torch::kCircular));
    };
    Tensor x = torch::tanh(norm(first(padded(piece, 2))));
    x = torch::tanh(converted(second(padded(x, 1))));
    return last(x);
  }

  torch::nn::Conv2d first = nullptr, second = nullptr, last = nullptr;
  meshrun::SyncBatchNorm norm = nullptr;
  torch::nn::BatchNorm2d converted = nullptr;
  torch::nn::Linear unused = nullptr;
};
TORCH_MODULE(Network);

int train(int64_t steps, const std::string& directory, const std::string& name,
          int64_t stop_after) {
  meshrun::DistributedManager& manager = meshrun::DistributedManager::get();
  meshrun::GracefulStop stop;
  manager.initialize_mesh({1, -1}, {"dp", kSpatial});
  const int parts = manager.group_size(kSpatial);
  const std::vector<int64_t> sizes = meshrun::compute_split_shapes(kRows, parts);
  const meshrun::SplitRange rows = meshrun::split_range(kRows, parts, manager.group_rank(kSpatial));

  torch::manual_seed(4);
  Network network;
  network->to(torch::kDouble);
  meshrun::convert_sync_batch_norm(network);
  meshrun::DistributedDataParallel model(
      network, {.broadcast_buffers = false, .find_unused_parameters = true});
  torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  meshrun::CheckpointDirectory checkpoints(directory + "/" + name,
                                           {.identity = {{"--steps", std::to_string(steps)}}});
  const int64_t begin =
      checkpoints.load(*network, optimizer).value_or(meshrun::TrainingProgress{}).step;
  for (int64_t step = begin; step < steps; ++step) {
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(0.1 * (1 - static_cast<double>(step) / static_cast<double>(steps)));
    }
    optimizer.zero_grad();
    double loss = 0;
    for (int64_t micro = 0; micro < kMicroBatches; ++micro) {
      torch::manual_seed(100 * step + micro);
      const Tensor whole = torch::rand({kFields, 1, kRows, kColumns}, torch::kDouble);
      const Tensor wanted =
          (whole.roll(1, 2) - whole.roll(-1, 3)).narrow(2, rows.begin, rows.size());
      const auto backward = [&] {
        const Tensor predicted = model(whole.narrow(2, rows.begin, rows.size()), sizes);
        const Tensor share = (predicted - wanted).square().sum() *
                             (static_cast<double>(manager.world_size()) /
                              static_cast<double>(kMicroBatches * whole.numel()));
        share.backward();
        loss += share.item<double>();
      };
      if (micro + 1 < kMicroBatches) {
        const meshrun::NoSyncGuard guard = model->no_sync();
        backward();
      } else {
        backward();
      }
    }
    optimizer.step();
    const int64_t done = step + 1;
    if (auto* const agent = manager.agent()) {
      agent->Report({.step = done, .total_steps = steps, .loss = loss, .metrics = {}, .note = ""});
    }
    if (done == stop_after && manager.rank() == manager.world_size() - 1) std::raise(SIGTERM);
    if (stop.agreed()) {
      checkpoints.save(*network, optimizer, {done});
      std::printf("rank %d stopped after %lld steps\n", manager.rank(),
                  static_cast<long long>(done));
      return stop.exit_code();
    }
  }
  checkpoints.save(*network, optimizer, {steps});
  std::printf("rank %d trained steps %lld to %lld\n", manager.rank(), static_cast<long long>(begin),
              static_cast<long long>(steps));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  meshrun::DistributedManager::initialize();
  torch::set_num_threads(1);
  const int code =
      train(std::atoll(argv[1]), argv[2], argv[3], argc > 4 ? std::atoll(argv[4]) : -1);
  meshrun::DistributedManager::cleanup(/*barrier=*/true);
  return code;
}
