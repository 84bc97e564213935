// Phases of a job: the state that people see, and what QUIESCING and RUNNING are about. All changes
// between phases stand in one table.
//
//   kQueued, kWaiting ──> kAdmitted ──> kRendezvous ──> kRunning ──> kSucceeded
//                             ▲                          │    │
//          the survivors      │      a rank or host died │    │ asked to stand still
//          go on in process   │        ┌─────────────────┘    └──────┐
//                             │        ▼                             ▼
//                             ├── kSurvivorsWait             kAskedToQuiesce ──> kFinishing
//                             │                                      │      (a rank has finished)
//                             └──────────────────────────────────────┘
//   Each of these that has ranks can change to kStopping (Stop was sent), and that one to kWaiting,
//   or to the end: kSucceeded, kFailed, kCancelled.
//
// A phase is durable as the job's state and two flags of its record. Pure; no errors.
#pragma once

#include <string_view>

#include "meshrun/v1/job.pb.h"
#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

enum class JobPhase {
  // Not submitted yet, or not restored yet.
  kNew,
  kQueued,
  kWaiting,
  kAdmitted,
  kRendezvous,
  kRunning,
  // RUNNING. The ranks were asked to stand still, and one of them had finished: the others come to
  // their end, and are not asked again.
  kFinishing,
  // QUIESCING, and no Stop was sent: the ranks that are left become the next generation, once every
  // one of their hosts is connected or lost.
  kSurvivorsWait,
  // As kSurvivorsWait, and once all ranks stand still, as they were asked to.
  kAskedToQuiesce,
  // QUIESCING: the ranks are being stopped.
  kStopping,
  kSuspended,
  kSucceeded,
  kFailed,
  kCancelled,
};

struct PhaseOnDisk {
  JobPhase phase;
  v1::JobState state;
  // As in JobRecord.
  bool survivors_wait;
  bool quiesce_asked;
  std::string_view name;
};

inline constexpr PhaseOnDisk kPhases[] = {
    {JobPhase::kNew, v1::JOB_STATE_UNSPECIFIED, false, false, "new"},
    {JobPhase::kQueued, v1::JOB_STATE_QUEUED, false, false, "queued"},
    {JobPhase::kWaiting, v1::JOB_STATE_WAITING, false, false, "waiting"},
    {JobPhase::kAdmitted, v1::JOB_STATE_ADMITTED, false, false, "admitted"},
    {JobPhase::kRendezvous, v1::JOB_STATE_RENDEZVOUS, false, false, "rendezvous"},
    {JobPhase::kRunning, v1::JOB_STATE_RUNNING, false, false, "running"},
    {JobPhase::kFinishing, v1::JOB_STATE_RUNNING, false, true, "finishing"},
    {JobPhase::kSurvivorsWait, v1::JOB_STATE_QUIESCING, true, false, "survivors wait"},
    {JobPhase::kAskedToQuiesce, v1::JOB_STATE_QUIESCING, true, true, "asked to quiesce"},
    {JobPhase::kStopping, v1::JOB_STATE_QUIESCING, false, false, "stopping"},
    {JobPhase::kSuspended, v1::JOB_STATE_SUSPENDED, false, false, "suspended"},
    {JobPhase::kSucceeded, v1::JOB_STATE_SUCCEEDED, false, false, "succeeded"},
    {JobPhase::kFailed, v1::JOB_STATE_FAILED, false, false, "failed"},
    {JobPhase::kCancelled, v1::JOB_STATE_CANCELLED, false, false, "cancelled"},
};

struct PhaseChange {
  JobPhase from;
  JobPhase to;
  std::string_view when;
};

inline constexpr PhaseChange kPhaseChanges[] = {
    {JobPhase::kNew, JobPhase::kQueued, "submitted"},

    {JobPhase::kQueued, JobPhase::kAdmitted, "placed"},
    {JobPhase::kQueued, JobPhase::kFailed, "its queue timeout is over"},
    {JobPhase::kQueued, JobPhase::kCancelled, "cancelled"},
    {JobPhase::kWaiting, JobPhase::kAdmitted, "placed"},
    {JobPhase::kWaiting, JobPhase::kFailed, "its queue timeout is over"},
    {JobPhase::kWaiting, JobPhase::kCancelled, "cancelled"},

    {JobPhase::kAdmitted, JobPhase::kRendezvous, "Prepare is sent"},

    {JobPhase::kRendezvous, JobPhase::kRunning, "all hosts have prepared"},
    {JobPhase::kRendezvous, JobPhase::kQueued, "given up before its first start"},
    {JobPhase::kRendezvous, JobPhase::kWaiting, "given up, nothing runs"},
    {JobPhase::kRendezvous, JobPhase::kFailed, "its command or its hosts are bad"},
    {JobPhase::kRendezvous, JobPhase::kCancelled, "cancelled, nothing runs"},
    {JobPhase::kRendezvous, JobPhase::kSurvivorsWait, "a kept rank or its host died"},
    {JobPhase::kRendezvous, JobPhase::kStopping, "given up, kept ranks run"},

    {JobPhase::kRunning, JobPhase::kAskedToQuiesce, "the job grows or moves"},
    {JobPhase::kRunning, JobPhase::kSurvivorsWait, "a rank or its host died"},
    {JobPhase::kRunning, JobPhase::kStopping, "failed, cancelled or stopped"},
    {JobPhase::kRunning, JobPhase::kSucceeded, "all ranks have ended well"},

    {JobPhase::kFinishing, JobPhase::kStopping, "failed, cancelled or stopped"},
    {JobPhase::kFinishing, JobPhase::kSucceeded, "all ranks have ended well"},

    {JobPhase::kAskedToQuiesce, JobPhase::kAdmitted, "all stand still: they go on in process"},
    {JobPhase::kAskedToQuiesce, JobPhase::kFinishing, "a rank had finished"},
    {JobPhase::kAskedToQuiesce, JobPhase::kStopping, "they cannot go on"},
    {JobPhase::kAskedToQuiesce, JobPhase::kSucceeded, "all ranks have ended well"},
    {JobPhase::kAskedToQuiesce, JobPhase::kWaiting, "none has survived"},
    {JobPhase::kAskedToQuiesce, JobPhase::kFailed, "none has survived, no restart is left"},

    {JobPhase::kSurvivorsWait, JobPhase::kAdmitted, "they go on in process"},
    {JobPhase::kSurvivorsWait, JobPhase::kRunning, "a rank reports that all have finished"},
    {JobPhase::kSurvivorsWait, JobPhase::kStopping, "they cannot go on"},
    {JobPhase::kSurvivorsWait, JobPhase::kSucceeded, "all ranks have ended well"},
    {JobPhase::kSurvivorsWait, JobPhase::kWaiting, "none has survived"},
    {JobPhase::kSurvivorsWait, JobPhase::kFailed, "none has survived, no restart is left"},

    {JobPhase::kStopping, JobPhase::kWaiting, "all ranks have ended: another generation follows"},
    {JobPhase::kStopping, JobPhase::kSucceeded, "all ranks have ended well all the same"},
    {JobPhase::kStopping, JobPhase::kFailed, "all ranks have ended: no other generation follows"},
    {JobPhase::kStopping, JobPhase::kCancelled, "all ranks have ended, as was asked for"},
};

// Whether the table has the change.
constexpr bool MayFollow(JobPhase from, JobPhase to) {
  for (const PhaseChange& change : kPhaseChanges) {
    if (change.from == from && change.to == to) return true;
  }
  return false;
}

constexpr const PhaseOnDisk& OnDisk(JobPhase phase) {
  for (const PhaseOnDisk& row : kPhases) {
    if (row.phase == phase) return row;
  }
  return kPhases[0];
}

// Phase of a job with this state and record. Flags count only where a phase has them.
JobPhase PhaseOf(v1::JobState state, const v1::JobRecord& record);

// Nothing of the job follows.
constexpr bool HasEnded(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

}  // namespace meshrun::coordinator
