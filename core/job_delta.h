// Changes of a job, as WatchJob sends them: made by the coordinator, folded by whoever reads them.
// Pure.
#pragma once

#include "meshrun/v1/job_service.pb.h"

namespace meshrun {

// The job as it is after the change.
void Fold(const v1::JobDelta& delta, v1::Job* job);

// One answer in place of two that follow each other.
void Merge(const v1::WatchJobResponse& later, v1::WatchJobResponse* earlier);

}  // namespace meshrun
