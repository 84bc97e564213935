// Whether and how the ranks of a generation that run take the next one in process: which of them
// live on, and on which nodes. Decides; generations.h carries it out.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/state_machine/departures.h"
#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/nodes.h"
#include "coordinator/state_machine/placement.h"

namespace meshrun::coordinator {

// Ranks of the last generation by node and local rank: those that run live on.
using SurvivingRanks = std::map<std::string, std::vector<v1::RankStatus>>;

// The next generation, in which processes of the last one live on.
struct NextGeneration {
  Placement placement;
  SurvivingRanks survivors;
  // How many ranks live on.
  int living = 0;
  // It uses nodes on which ranks of the job have not run.
  bool has_newcomers = false;
};

// Whether processes of earlier generations live on in the current one.
bool HasSurvivors(const Job& job);
// Whether the rank's process takes another generation.
bool LivesOn(const v1::RankStatus& rank);
// Whether the ranks that run take another generation in process. Beside survivors, a process that
// was started for this generation and has not come so far is replaced.
bool TakesGenerations(const Job& job);
// Whether every rank can be asked to stand still.
bool StandsStillWhenAsked(const Job& job);
// How many ranks run, and how many of them stand still for the next generation.
struct StandingStill {
  int still = 0;
  int running = 0;
};
StandingStill CountStandingStill(const Job& job);

class Continuation {
 public:
  Continuation(Context& context, NodeTable& nodes, JobTable& jobs, const Departures& departures)
      : context_(context), nodes_(nodes), jobs_(jobs), departures_(departures) {}

  // Nothing where the ranks cannot go on now.
  std::optional<NextGeneration> Plan(Job& job);
  // A node that may be had once the fence time of another one is over: the survivors wait for it,
  // and the job says so.
  bool WaitsForFence(Job& job);
  // Places the job as if the resources of its living members were free. `avoided_too`: if nothing
  // else fits, nodes that the job avoids are used too.
  PlacementResult PlaceAgain(Job& job, std::vector<const v1::Node*> nodes, bool avoided_too);
  // Whether the job finds a place when this node leaves it, and those that leave it already.
  bool GoesOnWithout(Job& job, const Node& leaving);

 private:
  // That its next generation may use now. `*waits`: as of Departures::Candidates.
  std::vector<const v1::Node*> NodesFor(const Job& job, std::string* waits) const;

  Context& context_;
  NodeTable& nodes_;
  JobTable& jobs_;
  const Departures& departures_;
};

}  // namespace meshrun::coordinator
