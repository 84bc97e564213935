// The data-parallel recipe: a fully connected network, trained by every rank on batches of its own,
// with gradients averaged over all of them.
//
//   ddp_recipe                                  one process
//   meshrun run --nproc-per-node 2 --job ddp_recipe
//   torchrun --no-python --nproc-per-node 2 ddp_recipe
//   mpirun -n 2 ddp_recipe
//
// The last line is the same under each of them, for the same number of ranks.

#include <torch/optim/adam.h>

#include <cstdio>

#include "jobs/runtime/job.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/distributed_data_parallel.h"
#include "parallel/nn/fully_connected.h"

namespace {

using meshrun::DistributedDataParallel;
using meshrun::DistributedManager;
using meshrun::FullyConnected;
using meshrun::FullyConnectedOptions;
using torch::Tensor;

void train() {
  // Finds out how many processes there are and which one this is, whatever started it.
  meshrun::jobs::join_world();
  DistributedManager& dist = DistributedManager::get();

  // Each rank draws its own samples; the network starts as rank 0's everywhere.
  torch::manual_seed(dist.rank());
  FullyConnected arch(FullyConnectedOptions().in_features(32).out_features(64));
  arch->to(dist.device());

  DistributedDataParallel model(arch, {.device_ids = {dist.local_rank()},
                                       .output_device = dist.device(),
                                       .broadcast_buffers = dist.broadcast_buffers(),
                                       .find_unused_parameters = dist.find_unused_parameters()});
  torch::optim::Adam optimizer(model->parameters(), /*lr=*/0.001);

  const auto training_step = [&](const Tensor& input, const Tensor& target) {
    optimizer.zero_grad();
    const Tensor prediction = model(input);
    const Tensor loss = torch::sum(torch::pow(prediction - target, 2));
    loss.backward();  // averages the gradients over the ranks while it runs
    optimizer.step();
    return loss.item<double>();
  };

  constexpr int kSteps = 20;
  double loss = 0;
  for (int step = 1; step <= kSteps; ++step) {
    const Tensor input = torch::randn({128, 32}, dist.device());
    const Tensor target = torch::randn({128, 64}, dist.device());
    loss = training_step(input, target);
    if (dist.rank() == 0 && step % 5 == 0) std::printf("step %2d  loss %.2f\n", step, loss);
  }

  double squares = 0;
  for (const Tensor& parameter : model->parameters()) {
    squares += parameter.detach().square().sum().item<double>();
  }
  if (dist.rank() == 0) {
    std::printf("ddp_recipe: %d steps on %d rank(s), loss %.2f, sum of squared parameters %.3f\n",
                kSteps, dist.world_size(), loss, squares);
  }
}

}  // namespace

int main() { meshrun::jobs::run_job("ddp_recipe", train); }
