// The engine's PeerWatch over the rank's daemon: the daemon sees a rank's exit, the coordinator
// pushes it to the peers and compares what blocked ranks report.
//
// Needs of agent/agent.h, beside OnStop (one stream carries all three):
//   absl::Status ReportWait(const WaitReport&), WithdrawWait()
//   void OnPeerNews(std::function<void(const PeerNews&)>): rank lost (rank, reason), rank left,
//     verdict, dump the flight recorder
//
// Threads: the agent's. Errors: none; an agent out of reach leaves the timeouts.
#pragma once

#include <memory>

#include "agent/agent.h"
#include "parallel/comm/ucx/engine/peer_watch.h"

namespace meshrun {

std::unique_ptr<ucx::PeerWatch> create_agent_watch(std::shared_ptr<agent::Agent> agent);

}  // namespace meshrun
