#include "coordinator/state_machine/privacy.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "core/status.h"

namespace meshrun::coordinator {
namespace {

constexpr char kPrivate[] = "(private)";

bool IsOwn(const Context& context, const std::string& submitter) {
  return !context.own_private_only || submitter == context.user;
}

void ConcealText(std::string* text) {
  if (!text->empty()) *text = kPrivate;
}

void ConcealExit(v1::RankExit* exit) {
  exit->clear_last_lines();
  ConcealText(exit->mutable_error_message());
}

void ConcealProgress(v1::Progress* progress) {
  progress->clear_loss();
  progress->clear_metrics();
  progress->clear_note();
}

}  // namespace

bool MaySee(const Context& context, const v1::Job& job) {
  return !job.spec().private_() || IsOwn(context, job.submitter());
}

absl::StatusOr<const Job*> LookupVisible(const Context& context, JobTable& jobs,
                                         const std::string& id_or_prefix) {
  MESHRUN_ASSIGN_OR_RETURN(const Job* const job, jobs.Lookup(id_or_prefix));
  if (MaySee(context, job->view)) return job;
  return absl::PermissionDeniedError(
      fmt::format("job {} is private: its output is for '{}', who submitted it, and for the role "
                  "operate",
                  job->id(), job->view.submitter()));
}

void Conceal(v1::Job* job) {
  v1::JobSpec& spec = *job->mutable_spec();
  spec.clear_command();
  spec.add_command(kPrivate);
  spec.clear_env();
  spec.clear_working_dir();
  spec.clear_tensorboard();
  ConcealText(job->mutable_reason());
  ConcealText(job->mutable_hang());
  if (job->has_failure()) {
    ConcealText(job->mutable_failure()->mutable_message());
    if (job->failure().has_exit()) ConcealExit(job->mutable_failure()->mutable_exit());
  }
  for (v1::RankStatus& rank : *job->mutable_ranks()) {
    if (rank.has_exit()) ConcealExit(rank.mutable_exit());
    if (rank.has_progress()) ConcealProgress(rank.mutable_progress());
  }
  if (job->has_progress()) ConcealProgress(job->mutable_progress());
  job->clear_groups();
  job->clear_checkpoints();
}

v1::ClusterEvent EventFor(const Context& context, const v1::ClusterEvent& event) {
  v1::ClusterEvent out = event;
  if (!event.private_of().empty() && !IsOwn(context, event.private_of()))
    ConcealText(out.mutable_message());
  return out;
}

v1::UsageRecord UsageFor(const Context& context, v1::UsageRecord record) {
  if (record.private_() && !IsOwn(context, record.user())) ConcealText(record.mutable_reason());
  return record;
}

}  // namespace meshrun::coordinator
