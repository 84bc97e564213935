// What a rank has said so far, report by report. Pure.
#pragma once

#include <cstddef>

#include "meshrun/v1/common.pb.h"

namespace meshrun {

// A job's curve has so many metrics beside the loss: the first ones that are reported.
inline constexpr size_t kMostCurveMetrics = 8;

// `update` is older news than `known`, by the times of their steps on the rank's host.
bool IsEarlier(const v1::Progress& update, const v1::Progress& known);

// The values that `update` has, over those of `known`; an earlier one gives what is missing there.
void MergeProgress(const v1::Progress& update, v1::Progress* known);

}  // namespace meshrun
