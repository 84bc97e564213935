// What this rank reports: its progress, and what it waits for.
#include <chrono>
#include <optional>
#include <utility>

#include "agent/daemon_agent.h"
#include "agent/deadlines.h"
#include "core/wait_messages.h"

namespace meshrun::agent {
namespace {

// A daemon that is there again answers at once; else it is asked again.
constexpr std::chrono::seconds kResendTimeout(1);

v1::Progress ProgressOf(const Progress& progress) {
  v1::Progress out;
  if (progress.step) out.set_step(*progress.step);
  if (progress.total_steps) out.set_total_steps(*progress.total_steps);
  if (progress.loss) out.set_loss(*progress.loss);
  if (progress.samples) out.set_samples(*progress.samples);
  if (progress.data_seconds) out.set_data_seconds(*progress.data_seconds);
  for (const auto& [name, value] : progress.metrics) (*out.mutable_metrics())[name] = value;
  out.set_note(progress.note);
  return out;
}

}  // namespace

void DaemonAgent::Report(const Progress& progress) {
  Progress with_wait = progress;
  if (const auto waited = totals_->Waited(meshrun::Clock::Real().SteadyNow())) {
    with_wait.waited_seconds = std::chrono::duration<double>(*waited).count();
  }
  if (const uint64_t bytes = totals_->Sent(); bytes > 0) with_wait.collective_bytes = bytes;
  reports_.Send(with_wait);
}

void DaemonAgent::SetCollectives(bool under_way, SteadyNanos at) {
  const MutexLock lock(mu_);
  totals_->SetCollectivesKnown();
  if (under_way == collectives_) return;
  collectives_ = under_way;
  under_way ? totals_->BeginWait(at) : totals_->EndWait(at);
}

void DaemonAgent::EndCollectives() {
  if (std::exchange(collectives_, false)) totals_->EndWait(meshrun::Clock::Real().SteadyNow());
}

absl::Status DaemonAgent::ReportReliably(const Progress& progress) {
  // Sent by datagram too: else an older datagram could overwrite this report.
  Report(progress);
  auto request = NewRequest<v1::ReportProgressRequest>();
  *request.mutable_progress() = ProgressOf(progress);
  v1::ReportProgressResponse response;
  return calls_.Run(After(kCallTimeout), [&](grpc::ClientContext& context, auto) {
    return agent_->ReportProgress(&context, request, &response);
  });
}

absl::Status DaemonAgent::ReportWait(const WaitReport& report, Milliseconds timeout) {
  {
    MutexLock lock(mu_);
    waiting_ = report;
  }
  return SendWait(After(timeout));
}

absl::Status DaemonAgent::WithdrawWait(Milliseconds timeout) {
  {
    MutexLock lock(mu_);
    waiting_.reset();
  }
  return SendWait(After(timeout));
}

absl::Status DaemonAgent::ResendWait() {
  {
    MutexLock lock(mu_);
    if (!waiting_) return absl::OkStatus();
  }
  return SendWait(After(kResendTimeout));
}

absl::Status DaemonAgent::SendWait(Calls::Deadline deadline) {
  std::optional<WaitReport> waiting;
  {
    MutexLock lock(mu_);
    while (sending_wait_ && wait_sent_.WaitUntil(mu_, deadline)) continue;
    if (sending_wait_) {
      return absl::DeadlineExceededError("an earlier report of this rank's wait is not answered");
    }
    sending_wait_ = true;
    waiting = waiting_;
  }
  absl::Status status;
  if (waiting) {
    auto request = NewRequest<v1::ReportWaitRequest>();
    *request.mutable_report() = ToProto(*waiting);
    v1::ReportWaitResponse response;
    status = calls_.Run(deadline, [&](grpc::ClientContext& context, auto) {
      return agent_->ReportWait(&context, request, &response);
    });
  } else {
    auto request = NewRequest<v1::WithdrawWaitRequest>();
    v1::WithdrawWaitResponse response;
    status = calls_.Run(deadline, [&](grpc::ClientContext& context, auto) {
      return agent_->WithdrawWait(&context, request, &response);
    });
  }
  MutexLock lock(mu_);
  sending_wait_ = false;
  wait_sent_.NotifyAll();
  return status;
}

}  // namespace meshrun::agent
