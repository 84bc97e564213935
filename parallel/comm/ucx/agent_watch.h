// PeerWatch over the worker daemon: who died or left comes from the daemons, which see every
// process end; what blocked ranks report goes to the coordinator, which decides for all hosts.
//
//   rank ── daemon ──┐
//   rank ──┘         ├── coordinator (the WaitBoard of the generation)
//   rank ── daemon ──┘
//
// A rank that has left is one whose process has exited with code 0; one that stops its watch and
// lives on is not. While the coordinator is away, the daemon tells of its own ranks; reports are
// said again when it is back.
//
// Threads: one that reports, asleep until there is something to say; the agent's own for the news.
// report() and withdraw() only leave a note, the last of which counts.
#pragma once

#include <memory>

#include "agent/agent.h"
#include "parallel/comm/ucx/engine/liveness/peer_watch.h"

namespace meshrun::ucx {

// Keeps the agent.
std::unique_ptr<PeerWatch> create_agent_watch(std::shared_ptr<agent::Agent> agent);

}  // namespace meshrun::ucx
