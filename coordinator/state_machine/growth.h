// Jobs that run on fewer nodes than they may: when nodes are free, their ranks are asked to stand
// still, and the next generation takes these nodes too. JobSpec.growth says when. Ranks that take
// no other generation in their process are started anew where the job is to grow at once; that is
// not charged.
#pragma once

#include <optional>
#include <string>

#include "coordinator/state_machine/continuation.h"
#include "coordinator/state_machine/deadline_index.h"
#include "coordinator/state_machine/departures.h"
#include "coordinator/state_machine/generations.h"
#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/nodes.h"

namespace meshrun::coordinator {

class Growth {
 public:
  // From a rank's start until it has said that it goes on in process, if it ever does.
  static constexpr std::chrono::seconds kTimeToSay{5};

  Growth(Context& context, NodeTable& nodes, JobTable& jobs, const Departures& departures,
         Continuation& continuation, Generations& generations)
      : context_(context),
        nodes_(nodes),
        jobs_(jobs),
        departures_(departures),
        continuation_(continuation),
        generations_(generations) {}

  // Called at the end of a batch, if the whole queue was looked at and no job waits for existing
  // nodes.
  void GrowAll();
  // Whether a job that waited for its ranks' word is to be looked at again.
  bool PopDue();
  std::optional<SteadyNanos> NextDeadline() const { return again_.Next(); }

 private:
  // An event, once in a generation, where free nodes would do for more ranks.
  void SayWhatItWaitsFor(Job& job, const std::string& waits);
  // Whether the job's ranks may be started anew. False also where that is not known yet: it is
  // looked at again.
  bool MayRestart(const Job& job);

  Context& context_;
  NodeTable& nodes_;
  JobTable& jobs_;
  const Departures& departures_;
  Continuation& continuation_;
  Generations& generations_;
  DeadlineIndex<std::string> again_;
};

}  // namespace meshrun::coordinator
