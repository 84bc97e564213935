// One report of a rank: a datagram with one JSON object, {"step": 12, "total_steps": 300, "loss":
// 0.3, "note": "evaluating", "metrics": {"lr": 0.001}, "images_per_s": 812}. Numbers of other names
// are metrics. Pure.
#pragma once

#include <deque>
#include <string_view>

#include "meshrun/v1/common.pb.h"
#include "meshrun/v1/flight_record.pb.h"

namespace meshrun::worker {

// Writes the values of the datagram over `progress`; other values stay. NaN and Infinity are
// accepted as Python's json writes them. False, with `progress` unchanged, when the datagram is not
// a JSON object. `alone`: empty, and gets the values of this datagram alone; null: nobody asks.
bool MergeReport(std::string_view datagram, v1::Progress* progress, v1::Progress* alone = nullptr);

// The values that `update` has, over those of `progress`.
void MergeProgress(const v1::Progress& update, v1::Progress* progress);

// So many of a rank's last steps are kept.
inline constexpr size_t kMostSteps = 256;
// Appends a step; beyond kMostSteps the oldest go.
void KeepStep(v1::StepTime step, std::deque<v1::StepTime>* steps);

}  // namespace meshrun::worker
