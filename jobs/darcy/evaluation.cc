#include "jobs/darcy/evaluation.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "jobs/runtime/all_reduce.h"
#include "parallel/collectives/all_gather_v.h"
#include "parallel/collectives/mappings.h"

namespace meshrun::darcy {
namespace {

using at::Tensor;

// Bounds the memory of a forward pass.
constexpr int64_t kChunk = 16;

}  // namespace

Tensor relative_errors(const Tensor& predicted, const Tensor& truth, const Tensor& norms,
                       const jobs::RankMesh& mesh) {
  const Tensor squares =
      reduce_from_parallel_region((predicted - truth).square().sum({1, 2}), mesh.spatial);
  // The root has no slope at zero.
  constexpr double kTiny = 1e-30;
  return squares.clamp_min(kTiny).sqrt() / norms;
}

TestErrors evaluate(const Predict& predict, const Samples& samples, int64_t first, int64_t count,
                    const jobs::RankMesh& mesh, c10::Device device) {
  const at::NoGradGuard no_grad;
  const SplitRange share = mesh.share(count);
  double sum = 0;
  double worst = 0;
  for (int64_t at = share.begin; at < share.end; at += kChunk) {
    const int64_t size = std::min(kChunk, share.end - at);
    const auto pick = [&](const Tensor& all) { return all.narrow(0, first + at, size).to(device); };
    const Tensor errors = relative_errors(predict(pick(samples.permeability)),
                                          pick(samples.pressure), pick(samples.pressure_norm), mesh)
                              .to(at::kDouble);
    sum += errors.sum().item<double>();
    worst = std::max(worst, errors.max().item<double>());
  }
  const auto reduce = [&](double value, c10d::ReduceOp::RedOpType operation) {
    const Tensor own = at::full({1}, value, at::kDouble);
    return jobs::all_reduced(*mesh.data, device, own, operation).item<double>();
  };
  return {reduce(sum, c10d::ReduceOp::SUM) / static_cast<double>(count),
          reduce(worst, c10d::ReduceOp::MAX)};
}

Shown show(const Predict& predict, const Samples& samples, int64_t first, int64_t count,
           const jobs::RankMesh& mesh, c10::Device device) {
  const at::NoGradGuard no_grad;
  const auto [all, rows, columns] = samples.shape;
  const std::vector<int64_t> sizes = compute_split_shapes(columns, mesh.spatial->getSize());
  const Tensor permeability = samples.permeability.narrow(0, first, count).to(device);
  const Tensor pressure = samples.pressure.narrow(0, first, count).to(device);
  const Tensor own = at::stack({permeability, pressure, predict(permeability)});
  const Tensor whole = all_gather_v(own, sizes, 3, true, mesh.spatial).cpu().contiguous();
  const auto values = [&](int64_t which, int64_t sample) {
    const Tensor field = whole[which][sample];
    const auto* begin = field.const_data_ptr<float>();
    return std::vector<float>(begin, begin + field.numel());
  };
  Shown shown{rows, columns, {}};
  for (int64_t sample = 0; sample < count; ++sample) {
    shown.samples.push_back({values(0, sample), values(1, sample), values(2, sample)});
  }
  return shown;
}

}  // namespace meshrun::darcy
