// A project of one's own: a small network in data parallel, with batch normalization over all ranks
// and a learning rate that is a function of the step.
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numbers>

#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/distributed_data_parallel.h"
#include "parallel/nn/sync_batch_norm.h"

namespace {

constexpr int64_t kSteps = 40;
constexpr int64_t kBatch = 24;  // of all ranks together
constexpr int64_t kWarmUp = 5;

// Rises to the peak, then falls along a cosine. A schedule that is a function of the step needs no
// place in a checkpoint.
double rate_of(int64_t step) {
  constexpr double kPeak = 0.02;
  if (step < kWarmUp) return kPeak * static_cast<double>(step + 1) / kWarmUp;
  const double share = static_cast<double>(step - kWarmUp) / static_cast<double>(kSteps - kWarmUp);
  return kPeak * (1 + std::cos(std::numbers::pi * share)) / 2;
}

torch::nn::Sequential make_network() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(2, 32), torch::nn::BatchNorm1d(32),
                               torch::nn::Tanh(), torch::nn::Linear(32, 1));
}

}  // namespace

int main() {
  meshrun::DistributedManager::initialize();
  const auto& manager = meshrun::DistributedManager::get();
  torch::set_num_threads(1);

  torch::nn::Sequential network = make_network();
  network->to(torch::kDouble);
  meshrun::convert_sync_batch_norm(network);
  meshrun::DistributedDataParallel model(network);
  torch::optim::Adam optimizer(network->parameters());

  double loss_of_all = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    for (auto& group : optimizer.param_groups()) group.options().set_lr(rate_of(step));
    // Every rank draws the same batch and takes its share.
    torch::manual_seed(100 + step);
    const torch::Tensor whole = torch::rand({kBatch, 2}, torch::kDouble);
    const torch::Tensor x = whole.chunk(manager.world_size())[manager.rank()];
    const torch::Tensor wanted = (x.select(1, 0) * 3).sin() * x.select(1, 1);
    optimizer.zero_grad();
    const torch::Tensor loss = (model(x).squeeze(1) - wanted).square().mean();
    loss.backward();
    optimizer.step();
    std::vector<torch::Tensor> sum = {loss.detach() / manager.world_size()};
    meshrun::DistributedManager::get().world()->allreduce(sum)->wait();
    loss_of_all = sum[0].item<double>();
  }
  if (manager.rank() == 0) {
    std::printf("trained %lld steps on %d ranks: loss %.9f\n", static_cast<long long>(kSteps),
                manager.world_size(), loss_of_all);
  }
  meshrun::DistributedManager::cleanup(/*barrier=*/true);
}
