// Private jobs: what others may see of them. Their ids, users, states, times and sizes are
// everybody's; their arguments, environment and output, and sentences that may quote them, are for
// their submitter and for operators.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/state_machine/context.h"
#include "coordinator/state_machine/jobs.h"
#include "meshrun/v1/job.pb.h"
#include "meshrun/v1/usage.pb.h"

namespace meshrun::coordinator {

// Whether the caller of the event that is being stepped may see all of it.
bool MaySee(const Context& context, const v1::Job& job);
// A job that the caller wants to see whole. PERMISSION_DENIED unless he may; else as
// JobTable::Lookup.
absl::StatusOr<const Job*> LookupVisible(const Context& context, JobTable& jobs,
                                         const std::string& id_or_prefix);

// Leaves what others may see.
void Conceal(v1::Job* job);

// As the caller may see it.
v1::ClusterEvent EventFor(const Context& context, const v1::ClusterEvent& event);
v1::UsageRecord UsageFor(const Context& context, v1::UsageRecord record);

}  // namespace meshrun::coordinator
