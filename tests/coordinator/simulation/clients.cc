#include "tests/coordinator/simulation/clients.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "meshrun/v1/job_service.pb.h"

namespace meshrun::coordinator::simulation {
namespace {

bool HasEnded(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

}  // namespace

Client::Client(World& world, v1::JobSpec spec)
    : world_(world), spec_(std::move(spec)), request_id_("request-of-" + spec_.name()) {}

void Client::Submit() {
  v1::StateEvent event;
  *event.mutable_submit_job()->mutable_spec() = spec_;
  event.mutable_submit_job()->set_request_id(request_id_);
  world_.coordinator.Call(std::move(event), nullptr,
                          [this](const absl::Status& status, const MessagePtr& response) {
                            OnSubmitted(status, response);
                          });
}

void Client::OnSubmitted(const absl::Status& status, const MessagePtr& response) {
  if (absl::IsUnavailable(status)) {
    world_.timeline.After(world_.random.Between(milliseconds(100), seconds(2)),
                          [this] { Submit(); });
    return;
  }
  if (!status.ok()) {
    world_.ledger.Fail(fmt::format("{} is refused: {}", name(), status.ToString()));
    return;
  }
  const v1::Job& job = dynamic_cast<const v1::SubmitJobResponse&>(*response).job();
  if (!job_id_.empty() && job.job_id() != job_id_) {
    world_.ledger.Fail(fmt::format("one request makes two jobs, {} and {}", job_id_, job.job_id()));
  }
  job_id_ = job.job_id();
  if (!watching_) Watch();
  // A client whose answer was lost asks again, maybe much later, but while the job is surely known
  // (CoordinatorProcess::kKeepAtLeast).
  if (++answers_ <= kMostAnswers && world_.random.OneIn(3)) {
    world_.timeline.After(world_.random.Between(milliseconds(1), seconds(20)),
                          [this] { Submit(); });
  }
}

void Client::Watch() {
  watching_ = true;
  v1::StateEvent event;
  event.mutable_watch_job()->set_job_id(job_id_);
  // As the client library asks.
  event.mutable_watch_job()->set_deltas(true);
  const uint64_t call = world_.coordinator.Call(
      std::move(event), nullptr,
      [this](const absl::Status& status, const MessagePtr&) {
        watching_ = false;
        if (status.ok()) {
          done_ = true;
          if (!HasEnded(seen_)) world_.ledger.Fail(job_id_ + ": a watch ends before its job");
          return;
        }
        if (absl::IsNotFound(status)) {
          world_.ledger.Fail(job_id_ + " was answered to a client, and is not known any more");
          return;
        }
        world_.timeline.After(world_.random.Between(milliseconds(50), seconds(1)), [this] {
          if (!watching_ && !done_) Watch();
        });
      },
      [this](const absl::Status&, const MessagePtr& item) {
        if (const auto* change = dynamic_cast<const v1::WatchJobResponse*>(item.get())) {
          seen_ = change->has_delta() ? change->delta().head().state() : change->job().state();
        }
      });
  // Some watchers go away and come back.
  if (world_.random.OneIn(4)) {
    world_.timeline.After(world_.random.Between(milliseconds(1), seconds(15)),
                          [this, call] { world_.coordinator.CancelCall(call); });
  }
}

void Client::Cancel(bool now) {
  if (job_id_.empty()) return;
  v1::StateEvent event;
  event.mutable_cancel_job()->set_job_id(job_id_);
  event.mutable_cancel_job()->set_now(now);
  world_.coordinator.Call(std::move(event), nullptr,
                          [this, now](const absl::Status& status, const MessagePtr&) {
                            if (!absl::IsUnavailable(status)) return;
                            world_.timeline.After(seconds(1), [this, now] { Cancel(now); });
                          });
}

void Client::Pause(nanoseconds time) {
  Signal(SIGSTOP);
  world_.timeline.After(time, [this] { Signal(SIGCONT); });
}

void Client::StandStill(nanoseconds time) {
  world_.timeline.Note(name() + ": its ranks stand still");
  SteadyNanos& until = world_.works[name()].stands_until;
  until = std::max(until, world_.timeline.now() + time);
}

void Client::Signal(int signal) {
  if (job_id_.empty()) return;
  v1::StateEvent event;
  event.mutable_signal_job()->set_job_id(job_id_);
  event.mutable_signal_job()->set_signal(signal);
  world_.coordinator.Call(std::move(event), nullptr,
                          [this, signal](const absl::Status& status, const MessagePtr&) {
                            if (signal != SIGCONT || !absl::IsUnavailable(status)) return;
                            world_.timeline.After(seconds(1), [this, signal] { Signal(signal); });
                          });
}

}  // namespace meshrun::coordinator::simulation
