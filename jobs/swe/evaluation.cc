#include "jobs/swe/evaluation.h"

#include <ATen/ATen.h>

#include <set>

#include "jobs/runtime/all_reduce.h"
#include "jobs/swe/training.h"
#include "parallel/collectives/all_gather_v.h"

namespace meshrun::swe {

using at::Tensor;

TestErrors evaluate(SweNetwork& network, const Trajectories& trajectories, int64_t first,
                    int64_t count, const jobs::RankMesh& mesh, c10::Device device) {
  const at::NoGradGuard no_grad;
  const SplitRange share = mesh.share(count);
  const int64_t intervals = trajectories.states.size(1) - 1;
  // Rows: one step, its persistence, the rollout, its persistence.
  Tensor sums = at::zeros({4, intervals}, at::kDouble);
  for (int64_t at = share.begin; at < share.end; ++at) {
    const Tensor truth = trajectories.states[first + at].to(device);
    const Tensor before = truth.narrow(0, 0, intervals);
    const Tensor after = truth.narrow(0, 1, intervals);
    const Tensor start = truth.narrow(0, 0, 1);
    std::vector<Tensor> rollout = {start};
    for (int64_t step = 0; step < intervals; ++step) rollout.push_back(network(rollout.back()));
    const Tensor rolled_out = at::cat(rollout).narrow(0, 1, intervals);
    const auto errors = [&](const Tensor& predicted) {
      return relative_errors(predicted, after, after, network->scales(), mesh).to(at::kDouble);
    };
    sums += at::stack({errors(network(before)), errors(before), errors(rolled_out), errors(start)})
                .cpu();
  }
  const Tensor means = jobs::all_reduced(*mesh.data, device, sums) / static_cast<double>(count);
  const auto values = [&](int64_t row) {
    const auto* begin = means[row].const_data_ptr<double>();
    return std::vector<double>(begin, begin + intervals);
  };
  return {means[0].mean().item<double>(), means[1].mean().item<double>(), values(2), values(3)};
}

Shown show(SweNetwork& network, const Trajectories& trajectories, int64_t trajectory,
           const jobs::RankMesh& mesh, c10::Device device) {
  const at::NoGradGuard no_grad;
  const Tensor truth = trajectories.states[trajectory].to(device);
  const int64_t intervals = truth.size(0) - 1;
  const int64_t size = truth.size(2);
  const std::vector<int64_t> sizes = compute_split_shapes(size, mesh.spatial->getSize());
  const std::set<int64_t> shown_steps = {1, (intervals + 1) / 2, intervals};
  Shown shown{size, {}};
  Tensor predicted = truth.narrow(0, 0, 1);
  for (int64_t step = 1; step <= intervals; ++step) {
    predicted = network(predicted);
    if (!shown_steps.contains(step)) continue;
    const Tensor own = at::stack({truth[step][2], predicted[0][2]});
    const Tensor whole = all_gather_v(own, sizes, 2, true, mesh.spatial).cpu().contiguous();
    const auto values = [&](int64_t which) {
      const auto* begin = whole[which].const_data_ptr<float>();
      return std::vector<float>(begin, begin + size * size);
    };
    shown.moments.push_back({step, values(0), values(1)});
  }
  return shown;
}

}  // namespace meshrun::swe
