// What a caller with a certificate may name. Which methods its roles allow was checked before its
// event came here (core/rpc/roles.h).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/nodes.h"

namespace meshrun::coordinator {

// The method that the event is a call of, as its contract names it; of a session: "OpenSession".
std::string MethodOf(const v1::StateEvent& event);
// The job that the event names, as its caller wrote it; empty: none.
std::string JobIdOf(const v1::StateEvent& event);

// The method that the event is a call of, as its contract names it; of a session: "OpenSession".
std::string MethodOf(const v1::StateEvent& event);
// The job that the event names, as its caller wrote it; empty: none.
std::string JobIdOf(const v1::StateEvent& event);

// PERMISSION_DENIED: a worker names another node than its own, or a job that does not run there; or
// a submitter names somebody else's job.
absl::Status CheckCaller(const v1::StateEvent& event, NodeTable& nodes, JobTable& jobs);

// FAILED_PRECONDITION: the worker belongs to another cluster. What runs there is not this
// coordinator's to judge.
absl::Status CheckCluster(const std::string& cluster_id, const v1::Hello& hello);

}  // namespace meshrun::coordinator
