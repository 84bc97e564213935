#include "parallel/comm/ucx/engine/planning/shared_scratch.h"

#include <algorithm>

namespace meshrun::ucx {
namespace {

bool touches_scratch(const Schedule& schedule, const Step& step) {
  const auto is_scratch = [](const Region& region) {
    return region.space == Space::kScratch && region.bytes > 0;
  };
  const auto sources = schedule.sources.begin() + step.first_source;
  return is_scratch(step.from) || is_scratch(step.to) || is_scratch(step.staging) ||
         std::any_of(sources, sources + step.source_count, is_scratch);
}

// Copies nothing.
StepId add_empty_step(Schedule& schedule) {
  schedule.steps.emplace_back();
  return static_cast<StepId>(schedule.steps.size() - 1);
}

// A step's successors lie together: they move to the end.
void add_successor(Schedule& schedule, StepId step, StepId later) {
  std::vector<StepId>& all = schedule.successors;
  Step& earlier = schedule.steps[step];
  const uint32_t moved = earlier.first_successor;
  earlier.first_successor = static_cast<uint32_t>(all.size());
  for (uint32_t i = 0; i < earlier.successor_count; ++i) all.push_back(all[moved + i]);
  all.push_back(later);
  ++earlier.successor_count;
  ++schedule.steps[later].dependencies;
}

StepId end_of(Schedule& schedule, ScratchPart& part) {
  if (part.end) return *part.end;
  part.end = add_empty_step(schedule);
  for (StepId step = part.first_step; step < part.last_step; ++step) {
    if (touches_scratch(schedule, schedule.steps[step])) add_successor(schedule, step, *part.end);
  }
  return *part.end;
}

}  // namespace

ScratchPlace take_place(Schedule& schedule, int64_t bytes) {
  ScratchPlace place;
  if (bytes == 0) return place;
  std::vector<ScratchPart>& parts = schedule.scratch_parts;
  const int64_t most = std::max(kJoinedScratch, schedule.scratch_bytes);
  if (!parts.empty()) place.offset = parts.back().offset + parts.back().bytes;
  if (place.offset + bytes > most) place.offset = 0;
  const int64_t end = place.offset + bytes;
  std::vector<StepId> earlier;
  for (ScratchPart& part : parts) {
    if (part.offset < end && place.offset < part.offset + part.bytes) {
      earlier.push_back(end_of(schedule, part));
    }
  }
  if (!earlier.empty()) place.begin = add_empty_step(schedule);
  for (const StepId step : earlier) add_successor(schedule, step, *place.begin);
  // Whoever takes their memory later waits for this part, which waits for them.
  std::erase_if(parts, [&](const ScratchPart& part) {
    return place.offset <= part.offset && part.offset + part.bytes <= end;
  });
  schedule.scratch_bytes = std::max(schedule.scratch_bytes, end);
  return place;
}

void fill_place(Schedule& schedule, const ScratchPlace& place, int64_t bytes, StepId first) {
  if (bytes == 0) return;
  const auto last = static_cast<StepId>(schedule.steps.size());
  schedule.scratch_parts.push_back({place.offset, bytes, first, last, std::nullopt});
  if (!place.begin) return;
  Step& begin = schedule.steps[*place.begin];
  begin.first_successor = static_cast<uint32_t>(schedule.successors.size());
  for (StepId step = first; step < last; ++step) {
    if (!touches_scratch(schedule, schedule.steps[step])) continue;
    schedule.successors.push_back(step);
    ++schedule.steps[step].dependencies;
    ++begin.successor_count;
  }
}

}  // namespace meshrun::ucx
