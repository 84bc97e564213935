#include "jobs/runtime/epoch_sampler.h"

#include <numeric>
#include <stdexcept>
#include <utility>

#include "jobs/runtime/random.h"

namespace meshrun::jobs {
namespace {

constexpr uint64_t kStream = 0x6570'6f63'6800'0001;

}  // namespace

EpochSampler::EpochSampler(uint64_t seed, int64_t samples) : seed_(seed), samples_(samples) {
  if (samples < 1) throw std::invalid_argument("there are no samples to draw batches from");
}

std::vector<int64_t> EpochSampler::batch(int64_t step, int64_t batch_size) {
  std::vector<int64_t> result;
  result.reserve(static_cast<size_t>(batch_size));
  for (int64_t drawn = step * batch_size; drawn < (step + 1) * batch_size; ++drawn) {
    result.push_back(order(drawn / samples_)[static_cast<size_t>(drawn % samples_)]);
  }
  return result;
}

const std::vector<int64_t>& EpochSampler::order(int64_t epoch) {
  if (epoch == epoch_) return order_;
  epoch_ = epoch;
  order_.resize(static_cast<size_t>(samples_));
  std::iota(order_.begin(), order_.end(), int64_t{0});
  const uint64_t stream = mix(mix(kStream ^ mix(seed_)) ^ static_cast<uint64_t>(epoch));
  for (int64_t i = samples_ - 1; i > 0; --i) {
    const int64_t other = scale_to(mix(stream + static_cast<uint64_t>(i)), i + 1);
    std::swap(order_[static_cast<size_t>(i)], order_[static_cast<size_t>(other)]);
  }
  return order_;
}

}  // namespace meshrun::jobs
