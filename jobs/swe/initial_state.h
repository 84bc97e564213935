// Random smooth states of rotating shallow water.
//
// A stream function of wave numbers up to 4 gives a velocity without divergence; the depth is 1,
// plus what balances that flow geostrophically, plus a smaller random field that radiates waves.
//
// A state is a function of (seed, number) and its position alone, whichever rank holds it. Threads:
// any.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "jobs/swe/solver.h"
#include "parallel/base/split.h"

namespace meshrun::swe {

// States [first, first + count) in these columns: [count, 3, rows, own columns] float64 on the CPU.
at::Tensor random_states(uint64_t seed, int64_t first, int64_t count,
                         const ShallowWaterParameters& parameters, const SplitRange& columns);

}  // namespace meshrun::swe
