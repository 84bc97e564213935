// Stops that are neither failures nor cancels: the job makes room, moves, or its time is over.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state_machine/generations.h"
#include "core/rank_exit.h"

namespace meshrun::coordinator {
namespace {

// Every rank had finished before the stop reached it.
bool HasFinished(const v1::Job& job) {
  return std::all_of(job.ranks().begin(), job.ranks().end(), [](const v1::RankStatus& rank) {
    return rank.state() == v1::RANK_STATE_EXITED && ExitedCleanly(rank.exit()) &&
           !rank.exit().teardown();
  });
}

}  // namespace

void Generations::Stop(Job& job, v1::StopIntent intent, std::string_view event,
                       std::string_view node_id, std::string reason) {
  if (!job.active() || job.record.stop_intent() == v1::STOP_INTENT_TIME_LIMIT) return;
  const v1::JobState state = job.view.state();
  // Moving a job whose ranks are being stopped changes nothing; the end of its time does.
  const bool stopping = job.stopping();
  if (stopping && intent != v1::STOP_INTENT_TIME_LIMIT) return;
  context_.Record(event, job.id(), node_id, reason);
  job.record.set_stop_intent(intent);
  job.record.set_stop_reason(reason);
  jobs_.Changed(job);
  if (state == v1::JOB_STATE_RENDEZVOUS && !HasSurvivors(job)) {
    Abandon(job);
    ConcludeStop(job);
  } else if (!stopping) {
    Quiesce(job, jobs_.StopGrace(job), std::move(reason));
  }
}

bool Generations::ConcludeStop(Job& job) {
  const v1::StopIntent intent = job.record.stop_intent();
  const std::string reason = job.record.stop_reason();
  job.record.clear_stop_intent();
  job.record.clear_stop_reason();
  if (intent == v1::STOP_INTENT_UNSPECIFIED || job.finished() || HasFinished(job.view)) {
    return false;
  }
  if (intent == v1::STOP_INTENT_TIME_LIMIT) {
    FailJob(job, v1::FAILURE_CAUSE_TIME_LIMIT, reason, nullptr);
    return true;
  }
  // What went wrong before is charged as ever.
  if (job.record.cancel_requested() || job.failed()) return false;
  job.record.set_queue_note(reason);
  context_.Record("JobRequeued", job.id(), "", reason);
  jobs_.SetPhase(job, job.phase_in_queue(), reason);
  return true;
}

}  // namespace meshrun::coordinator
