#include "agent/agent.h"

#include <cstdlib>

#include "agent/daemon_agent.h"
#include "agent/environment.h"
#include "agent/totals.h"
#include "core/status.h"

namespace meshrun::agent {

absl::StatusOr<std::unique_ptr<Agent>> Agent::Connect(Milliseconds timeout) {
  MESHRUN_ASSIGN_OR_RETURN(const AgentEnvironment environment, ReadAgentEnvironment(std::getenv));
  return DaemonAgent::Connect(environment, timeout, /*in_process=*/false, Totals::OfProcess());
}

}  // namespace meshrun::agent
