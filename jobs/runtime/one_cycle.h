// The one-cycle learning rate: a cosine up to the peak, then a cosine down to nearly nothing. Smith
// and Topin, "Super-Convergence" (2018); the defaults are those of
// torch.optim.lr_scheduler.OneCycleLR.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace meshrun::jobs {

// The rate of `step`, from 0 to total_steps - 1.
inline double one_cycle(double peak, int64_t step, int64_t total_steps) {
  constexpr double kWarmUpShare = 0.3;
  constexpr double kStartDivisor = 25;
  constexpr double kEndDivisor = kStartDivisor * 1e4;
  const auto cosine = [](double from, double to, double share) {
    return to + (from - to) * (1 + std::cos(std::numbers::pi * share)) / 2;
  };
  const double last = std::max<double>(1, static_cast<double>(total_steps - 1));
  const double peak_at = std::max(1.0, kWarmUpShare * last);
  const auto at = static_cast<double>(step);
  if (at <= peak_at) return cosine(peak / kStartDivisor, peak, at / peak_at);
  return cosine(peak, peak / kEndDivisor, (at - peak_at) / std::max(1.0, last - peak_at));
}

}  // namespace meshrun::jobs
