// What jobs that have ended have used.
#pragma once

#include "coordinator/state_machine/jobs.h"
#include "meshrun/v1/usage.pb.h"

namespace meshrun::coordinator {

// The record of a job that has just ended.
v1::UsageRecord UsageOf(const Job& job, const v1::HeldTime& held);

}  // namespace meshrun::coordinator
