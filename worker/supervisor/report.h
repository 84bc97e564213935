// One report of a rank: a datagram with one JSON object, {"step": 12, "total_steps": 300, "loss":
// 0.3, "note": "evaluating", "metrics": {"lr": 0.001}, "images_per_s": 812}. Numbers of other names
// are metrics. Pure.
#pragma once

#include <deque>
#include <string>
#include <string_view>

#include "meshrun/v1/common.pb.h"
#include "meshrun/v1/flight_record.pb.h"

namespace meshrun::worker {

// Writes the values of the datagram over `progress`; other values stay. NaN and Infinity are
// accepted as Python's json writes them. `alone`: empty, and gets the values of this datagram
// alone; null: nobody asks. Returns why the datagram is refused, with `progress` unchanged: it is
// not a JSON object, or its step is not one. Empty: it is taken.
std::string MergeReport(std::string_view datagram, v1::Progress* progress,
                        v1::Progress* alone = nullptr);

// So many of a rank's last steps are kept.
inline constexpr size_t kMostSteps = 256;
// Appends a step; beyond kMostSteps the oldest go.
void KeepStep(v1::StepTime step, std::deque<v1::StepTime>* steps);

}  // namespace meshrun::worker
