#include "coordinator/state_machine/run_clock.h"

#include <algorithm>

#include "core/proto_time.h"

namespace meshrun::coordinator {

using std::chrono::nanoseconds;

void RunClock::OnState(v1::Job& job) {
  const std::string& id = job.job_id();
  const v1::JobState state = job.state();
  const bool on_hosts = state == v1::JOB_STATE_ADMITTED || state == v1::JOB_STATE_RENDEZVOUS ||
                        state == v1::JOB_STATE_RUNNING || state == v1::JOB_STATE_QUIESCING;
  if (!on_hosts || job.has_paused_since()) {
    if (job.has_running_since()) {
      *job.mutable_run_time() = ToProtoDuration(Used(job));
      job.clear_running_since();
    }
    since_.erase(id);
    limits_.Clear(id);
    return;
  }
  if (since_.contains(id) || (state != v1::JOB_STATE_RUNNING && !job.has_running_since())) return;
  // Time that the job has run since an earlier term, whose steady clock is gone.
  nanoseconds before(0);
  if (job.has_running_since()) {
    before = std::max(context_.wall - FromProto(job.running_since()), nanoseconds(0));
  } else {
    *job.mutable_running_since() = ToProtoTimestamp(context_.wall);
  }
  since_[id] = context_.now - before;
  if (const auto end = End(job)) limits_.Set(id, *end);
}

nanoseconds RunClock::Used(const v1::Job& job) const {
  const nanoseconds before = FromProto(job.run_time());
  const auto since = since_.find(job.job_id());
  return since == since_.end() ? before : before + (context_.now - since->second);
}

std::optional<SteadyNanos> RunClock::End(const v1::Job& job) const {
  if (!job.spec().has_time_limit()) return std::nullopt;
  const nanoseconds left =
      std::max(FromProto(job.spec().time_limit()) - FromProto(job.run_time()), nanoseconds(0));
  const auto since = since_.find(job.job_id());
  return (since == since_.end() ? context_.now : since->second) + left;
}

}  // namespace meshrun::coordinator
