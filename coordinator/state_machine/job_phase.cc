#include "coordinator/state_machine/job_phase.h"

namespace meshrun::coordinator {

JobPhase PhaseOf(v1::JobState state, const v1::JobRecord& record) {
  const bool waits = state == v1::JOB_STATE_QUIESCING && record.survivors_wait();
  const bool asked = (state == v1::JOB_STATE_RUNNING || waits) && record.quiesce_asked();
  for (const PhaseOnDisk& row : kPhases) {
    if (row.state == state && row.survivors_wait == waits && row.quiesce_asked == asked) {
      return row.phase;
    }
  }
  return JobPhase::kNew;
}

}  // namespace meshrun::coordinator
