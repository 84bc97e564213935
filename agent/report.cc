#include "agent/report.h"

#include "agent/agent.h"

namespace meshrun::agent {

void Report(Agent* agent, const Progress& progress) {
  if (agent != nullptr) agent->Report(progress);
}

std::string ReportReliably(Agent* agent, const Progress& progress) {
  if (agent == nullptr) return "";
  const absl::Status status = agent->ReportReliably(progress);
  if (status.ok()) return "";
  return status.message().empty() ? "the daemon gives no reason" : std::string(status.message());
}

}  // namespace meshrun::agent
