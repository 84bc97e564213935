#include "coordinator/state_machine/usage.h"

#include "core/utf8.h"

namespace meshrun::coordinator {
namespace {

constexpr size_t kMostReasonBytes = 1000;

}  // namespace

v1::UsageRecord UsageOf(const Job& job, const v1::HeldTime& held) {
  const v1::Job& view = job.view;
  v1::UsageRecord out;
  out.set_job_id(job.id());
  out.set_name(view.spec().name());
  out.set_user(view.submitter());
  out.set_account(view.spec().account());
  out.set_partition(view.spec().partition());
  out.set_state(view.state());
  out.set_reason(std::string(Utf8Prefix(view.reason(), kMostReasonBytes)));
  if (view.state() == v1::JOB_STATE_FAILED && view.failure().has_exit()) {
    out.set_exit_code(view.failure().exit().exit_code());
    out.set_signal(view.failure().exit().signal());
  }
  *out.mutable_submitted_at() = view.submitted_at();
  if (view.has_started_at()) *out.mutable_started_at() = view.started_at();
  *out.mutable_finished_at() = view.finished_at();
  out.set_cpu_seconds(held.slot_seconds());
  out.set_gpu_seconds(held.gpu_seconds());
  out.set_ranks(view.world_size());
  out.set_restarts(view.restarts());
  out.set_private_(view.spec().private_());
  return out;
}

}  // namespace meshrun::coordinator
