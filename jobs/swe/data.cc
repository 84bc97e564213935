#include "jobs/swe/data.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <sstream>
#include <vector>

#include "jobs/swe/initial_state.h"
#include "jobs/swe/solver.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/collectives/all_gather_v.h"

namespace meshrun::swe {
namespace {

using at::Tensor;

constexpr double kMeanDepth = 1;
// Trajectories that are solved together.
constexpr int64_t kSolvedTogether = 8;

int64_t trajectories_of(const Options& options) {
  return options.train_trajectories + options.test_trajectories;
}

// The fastest wave turns by at most one radian in a step, of the 2.8 that are stable.
int64_t steps_of(const Options& options) {
  const double largest_wave = std::sqrt(2.0) * static_cast<double>((options.size - 1) / 3);
  return static_cast<int64_t>(
      std::ceil(options.interval * std::hypot(options.coriolis, largest_wave)));
}

// [count, intervals + 1, 3, size, own columns] float32.
Tensor solve(ShallowWater& water, const Tensor& initial, const Options& options) {
  const int64_t steps = steps_of(options);
  std::vector<Tensor> snapshots;
  Tensor spectrum = water.to_spectrum(initial);
  for (int64_t snapshot = 0; snapshot <= options.intervals; ++snapshot) {
    if (snapshot > 0) {
      spectrum = water.advance(spectrum, options.interval / static_cast<double>(steps), steps);
    }
    const Tensor field = water.to_field(spectrum).clone();
    field.select(1, 2).sub_(kMeanDepth);
    snapshots.push_back(field.to(at::kFloat).cpu());
  }
  return at::stack(snapshots, 1);
}

// Fields are small: threads that wait for each other cost more than they save.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(threads_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int threads_ = at::get_num_threads();
};

// Over the ranks that share a field; [3, 1, 1].
Tensor root_mean_square(const Tensor& values, const jobs::RankMesh& mesh, c10::Device device) {
  const Tensor wide = values.to(at::kDouble);
  const auto count = static_cast<double>(values.numel()) / 3;
  std::vector<Tensor> sums = {
      at::cat({wide.square().sum({0, 1, 3, 4}), at::full({1}, count, at::kDouble)}).to(device)};
  mesh.spatial->allreduce(sums)->wait();
  const Tensor roots = (sums[0].narrow(0, 0, 3) / sums[0][3]).sqrt();
  // A variable that is zero everywhere has nothing to scale by.
  return at::where(roots > 0, roots, at::ones_like(roots)).to(at::kFloat).cpu().view({3, 1, 1});
}

std::string origin_of(const Options& options) {
  std::ostringstream text;
  text << "version 1, " << options.size << " x " << options.size << ", " << trajectories_of(options)
       << " trajectories of " << options.intervals << " intervals of " << options.interval
       << ", seed " << options.data_seed << ", Coriolis parameter " << options.coriolis
       << ", damping " << options.damping;
  return text.str();
}

}  // namespace

Trajectories make_trajectories(const Options& options, const jobs::RankMesh& mesh,
                               c10::Device device) {
  const auto start = std::chrono::steady_clock::now();
  const at::NoGradGuard no_grad;
  const OneThread one_thread;
  const ShallowWaterParameters parameters = {.rows = options.size,
                                             .columns = options.size,
                                             .coriolis = options.coriolis,
                                             .damping = options.damping};
  ShallowWater water(parameters, mesh.spatial, device);
  const int64_t all = trajectories_of(options);
  const SplitRange share = mesh.share(all);
  const SplitRange columns = mesh.columns(options.size);
  const Tensor solved =
      at::empty({share.size(), options.intervals + 1, 3, options.size, columns.size()}, at::kFloat);
  for (int64_t first = share.begin; first < share.end; first += kSolvedTogether) {
    const int64_t count = std::min(kSolvedTogether, share.end - first);
    const Tensor initial =
        random_states(static_cast<uint64_t>(options.data_seed), first, count, parameters, columns);
    solved.narrow(0, first - share.begin, count).copy_(solve(water, initial.to(device), options));
  }
  const std::string problem = common_problem(
      *mesh.world, c10::kCPU,
      solved.isfinite().all().item<bool>()
          ? ""
          : "the shallow-water solution is not finite; --damping above 0 or a larger --size helps");
  if (!problem.empty()) throw SolverError(problem);

  std::vector<int64_t> shares;
  for (int rank = 0; rank < mesh.data->getSize(); ++rank) {
    shares.push_back(split_range(all, mesh.data->getSize(), rank).size());
  }
  Trajectories trajectories;
  trajectories.origin = origin_of(options);
  trajectories.states = all_gather_v(solved.to(device), shares, 0, true, mesh.data).cpu();
  const Tensor training = trajectories.states.narrow(0, 0, options.train_trajectories);
  trajectories.scales = root_mean_square(training, mesh, device);
  trajectories.change_scales = root_mean_square(training.diff(1, 1), mesh, device);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  trajectories.seconds = elapsed.count();
  return trajectories;
}

}  // namespace meshrun::swe
