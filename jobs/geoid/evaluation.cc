#include "jobs/geoid/evaluation.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "jobs/runtime/all_reduce.h"
#include "parallel/base/split.h"

namespace meshrun::geoid {
namespace {

using at::Tensor;

// Bounds the memory of a forward pass.
constexpr int64_t kChunk = 8192;

SplitRange share_of(std::span<const int64_t> points, const c10d::ProcessGroup& group) {
  return split_range(static_cast<int64_t>(points.size()), group.getSize(), group.getRank());
}

// Calls visit(first, predicted, samples) for consecutive chunks of a share of `points`; `first` is
// the chunk's place in `points`, tensors are on the CPU.
template <typename Visit>
void for_each_chunk(GeoidNetwork& network, const Field& field, std::span<const int64_t> points,
                    c10::Device device, const SplitRange& share, const Visit& visit) {
  const at::NoGradGuard no_grad;
  for (int64_t first = share.begin; first < share.end; first += kChunk) {
    const int64_t count = std::min(kChunk, share.end - first);
    const Field::Samples samples = field.samples(points.subspan(first, count));
    visit(first, network(samples.positions.to(device)).cpu(), samples);
  }
}

struct MapPoints {
  Prediction result;  // without predictions
  std::vector<int64_t> points;
};

MapPoints thin(const Field& field, int64_t max_columns) {
  const GtxGrid& grid = field.grid();
  const int64_t stride = (grid.columns + max_columns - 1) / max_columns;
  const auto thinned = [stride](int64_t count) { return (count + stride - 1) / stride; };
  MapPoints out;
  out.result.map = {static_cast<int>(thinned(grid.rows)),
                    static_cast<int>(thinned(grid.columns)),
                    grid.south,
                    grid.west,
                    grid.latitude_step * static_cast<double>(stride),
                    grid.longitude_step * static_cast<double>(stride)};
  for (int64_t row = 0; row < grid.rows; row += stride) {
    for (int64_t column = 0; column < grid.columns; column += stride) {
      out.points.push_back(row * grid.columns + column);
      out.result.truth_m.push_back(grid.metres[out.points.back()]);
    }
  }
  return out;
}

// Zero outside the share.
Tensor predict(GeoidNetwork& network, const Field& field, std::span<const int64_t> points,
               c10::Device device, const SplitRange& share) {
  Tensor predicted = at::zeros({static_cast<int64_t>(points.size())}, at::kFloat);
  for_each_chunk(network, field, points, device, share,
                 [&](int64_t first, const Tensor& values, const Field::Samples&) {
                   predicted.narrow(0, first, values.size(0)).copy_(values);
                 });
  return predicted;
}

Prediction in_metres(MapPoints map, const Field& field, const Tensor& predicted) {
  const Tensor metres = predicted * field.standard_deviation_m() + field.mean_m();
  const auto* values = metres.const_data_ptr<float>();
  map.result.predicted_m.assign(values, values + metres.numel());
  return std::move(map.result);
}

}  // namespace

Errors evaluate(GeoidNetwork& network, const Field& field, std::span<const int64_t> points,
                c10::Device device, c10d::ProcessGroup& group) {
  Tensor sums = at::zeros({2}, at::kDouble);
  Tensor largest = at::zeros({1}, at::kDouble);
  for_each_chunk(network, field, points, device, share_of(points, group),
                 [&](int64_t, const Tensor& predicted, const Field::Samples& samples) {
                   const Tensor error = (predicted - samples.targets).to(at::kDouble);
                   const Tensor weights = samples.weights.to(at::kDouble);
                   sums += at::stack({(weights * error.square()).sum(), weights.sum()});
                   largest = at::maximum(largest, error.abs().max());
                 });
  sums = jobs::all_reduced(group, device, sums);
  largest = jobs::all_reduced(group, device, largest, c10d::ReduceOp::MAX);
  const double scale = field.standard_deviation_m();
  return {scale * std::sqrt(sums[0].item<double>() / sums[1].item<double>()),
          scale * largest.item<double>()};
}

Prediction predict_map(GeoidNetwork& network, const Field& field, int64_t max_columns,
                       c10::Device device, c10d::ProcessGroup& group) {
  MapPoints map = thin(field, max_columns);
  Tensor predicted = predict(network, field, map.points, device, share_of(map.points, group));
  // Shares are disjoint and zero elsewhere, so the sum gathers uneven pieces exactly, on any
  // backend.
  predicted = jobs::all_reduced(group, device, predicted, c10d::ReduceOp::SUM);
  return in_metres(std::move(map), field, predicted);
}

Prediction predict_map_alone(GeoidNetwork& network, const Field& field, int64_t max_columns,
                             c10::Device device) {
  MapPoints map = thin(field, max_columns);
  const SplitRange all{0, static_cast<int64_t>(map.points.size())};
  const Tensor predicted = predict(network, field, map.points, device, all);
  return in_metres(std::move(map), field, predicted);
}

}  // namespace meshrun::geoid
