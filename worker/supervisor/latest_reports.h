// The last reports of one rank, on their way to the coordinator: a value is passed on with the step
// that it was reported for, and never with a later one. Pure.
#pragma once

#include <deque>
#include <vector>

#include "meshrun/v1/common.pb.h"

namespace meshrun::worker {

// Keeps steps with their loss and metrics until later ones have all of their names: one for a rank
// that reports the same names each time, and one more for each name that comes less often. Totals
// and the note, which belong to no step, stand in all as they were last said.
class LatestReports {
 public:
  // `report` has just come, and `whole` is what the rank has said in all, with it. Metrics that
  // `whole` does not have are passed over.
  void Add(const v1::Progress& report, const v1::Progress& whole);
  bool has_unsent() const;
  // Steps that have changed since the last call, oldest first.
  std::vector<v1::Progress> TakeUnsent();
  // For a receiver that may have missed them.
  void OfferAgain();

 private:
  struct Step {
    v1::Progress values;
    bool unsent = true;
  };

  std::deque<Step> steps_;
};

}  // namespace meshrun::worker
