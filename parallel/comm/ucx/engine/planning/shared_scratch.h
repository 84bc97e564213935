// Scratch memory that the parts of a joined schedule use one after the other, so that a thousand
// coalesced tensors need no more than a few. Pure; no errors.
//
//   offset  0                                  kJoinedScratch
//           | part 0 | part 1 | part 2 |        |
//           | part 3     | part 4 | ...             3 waits for 0 and 1, 4 for 1 and 2
//
// Parts follow each other around a ring. A part whose place overlaps with earlier ones waits for
// them, at two steps that do nothing: the end of an earlier part's use of scratch memory, behind
// all of its steps that touch any, and the beginning of the later one's, before all of its.
//
// Ranks cannot wait for each other in a circle by this, whatever each one's sizes are: a step waits
// for steps of its own part, here or on other ranks, or for earlier parts.
#pragma once

#include <cstdint>
#include <optional>

#include "parallel/comm/ucx/engine/planning/schedule.h"

namespace meshrun::ucx {

// The parts of a schedule together, unless one alone needs more.
inline constexpr int64_t kJoinedScratch = 16 << 20;

// Where the next part's scratch memory is, and the step that it waits for.
struct ScratchPlace {
  int64_t offset = 0;
  std::optional<StepId> begin;
};
// Takes `bytes`, a multiple of 64, for a part whose steps come next. May add steps.
ScratchPlace take_place(Schedule& schedule, int64_t bytes);
// The part is there: steps from `first` on.
void fill_place(Schedule& schedule, const ScratchPlace& place, int64_t bytes, StepId first);

}  // namespace meshrun::ucx
