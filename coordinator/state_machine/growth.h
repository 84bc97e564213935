// Jobs that run on fewer nodes than they may: when nodes are free, their ranks are asked to stand
// still, and the next generation takes these nodes too. JobSpec.growth says when.
#pragma once

#include "coordinator/state_machine/continuation.h"
#include "coordinator/state_machine/departures.h"
#include "coordinator/state_machine/generations.h"
#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/nodes.h"

namespace meshrun::coordinator {

class Growth {
 public:
  Growth(NodeTable& nodes, JobTable& jobs, const Departures& departures, Continuation& continuation,
         Generations& generations)
      : nodes_(nodes),
        jobs_(jobs),
        departures_(departures),
        continuation_(continuation),
        generations_(generations) {}

  // Called at the end of a batch, if the whole queue was looked at and no job waits for existing
  // nodes.
  void GrowAll();

 private:
  NodeTable& nodes_;
  JobTable& jobs_;
  const Departures& departures_;
  Continuation& continuation_;
  Generations& generations_;
};

}  // namespace meshrun::coordinator
