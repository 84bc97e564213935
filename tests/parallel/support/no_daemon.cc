// Stands in for the line to a daemon where a test has none: agent::Agent::Connect() finds nobody.
#include "agent/agent.h"

namespace meshrun::agent {

bool Agent::InEnvironment() { return false; }

absl::StatusOr<std::unique_ptr<Agent>> Agent::Connect(Milliseconds) {
  return absl::UnavailableError("this test has no daemon");
}

}  // namespace meshrun::agent
