// The data-parallel recipe: each rank takes its share of every batch, and gradients are averaged
// over all ranks. The network learns the sine and the cosine of its inputs.
//
//   ddp_recipe [STEPS]                                   one process
//   meshrun run --nproc-per-node 2 --job ddp_recipe      two; the last line is the same
//   torchrun --no-python --nproc-per-node 2 ddp_recipe   under each of these
//   mpirun -n 2 ddp_recipe

#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/adam.h>

#include <charconv>
#include <cstdio>
#include <string_view>

#include "jobs/runtime/elastic.h"
#include "jobs/runtime/job.h"
#include "jobs/runtime/progress.h"
#include "jobs/runtime/stop.h"
#include "parallel/base/split.h"
#include "parallel/collectives/reduce_loss.h"
#include "parallel/elastic/elastic_state.h"
#include "parallel/elastic/graceful_stop.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/distributed_data_parallel.h"
#include "parallel/nn/fully_connected.h"

namespace meshrun::jobs {

// Starts again when a rank is lost or added: the ranks go on from memory (docs/elastic.md).
static void train(ElasticContext& elastic, int64_t steps) {
  DistributedManager& dist = DistributedManager::get();
  torch::manual_seed(0);
  FullyConnected network(FullyConnectedOptions().in_features(32).out_features(64));
  network->to(dist.device());
  torch::optim::Adam optimizer(network->parameters(), /*lr=*/0.001);
  ElasticState state(elastic, *network, optimizer);
  const int64_t first = state.restore().value_or(0);
  DistributedDataParallel model(network);

  // The batch of a step is the same for any number of ranks.
  constexpr int64_t kBatch = 256;
  const SplitRange own = split_range(kBatch, dist.world_size(), dist.rank());
  const auto loss_of = [&](int64_t step) {
    torch::manual_seed(step);
    const auto x = torch::randn({kBatch, 32}).narrow(0, own.begin, own.size()).to(dist.device());
    const auto error = model(x) - torch::cat({x.sin(), x.cos()}, 1);
    // The mean over the ranks is the mean over the batch, also where shares differ in size.
    return error.square().sum() * (dist.world_size() / (kBatch * 64.0));
  };

  GracefulStop stop;
  Progress progress("ddp_recipe", steps, /*line_every=*/5);
  for (const int64_t step : state.steps(first, steps)) {
    optimizer.zero_grad();
    const auto loss = loss_of(step);
    loss.backward();  // averages the gradients over the ranks while it runs
    state.update([&] { optimizer.step(); });
    progress.report(step + 1, loss.item<double>(), {});
    if (step % 10 == 9 && stop.agreed()) throw Stopped();
  }

  const torch::NoGradGuard no_grad;
  const auto loss = reduce_loss(loss_of(steps).item<double>());  // of new samples; on rank 0
  if (!loss) return;
  const auto parameters = torch::nn::utils::parameters_to_vector(network->parameters());
  const double squares = parameters.square().sum().item<double>();
  // Once, also where a rank is lost before all have come so far.
  elastic.at_end([steps, ranks = dist.world_size(), loss = *loss, squares] {
    std::printf("ddp_recipe: %ld steps on %d rank(s), loss %.4f, sum of squared parameters %.3f\n",
                steps, ranks, loss, squares);
  });
}

}  // namespace meshrun::jobs

int main(int argc, char** argv) {
  meshrun::jobs::run_job("ddp_recipe", [&] {
    const std::string_view text = argc > 1 ? argv[1] : "20";
    const char* const last = text.data() + text.size();
    int64_t steps = 0;
    const auto [end, error] = std::from_chars(text.data(), last, steps);
    if (error != std::errc{} || end != last || steps < 1)
      throw meshrun::jobs::UsageError("usage: ddp_recipe [STEPS]");
    meshrun::jobs::join_world();
    meshrun::jobs::run_elastic([&](auto& elastic) { meshrun::jobs::train(elastic, steps); });
  });
}
