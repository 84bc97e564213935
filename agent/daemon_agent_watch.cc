// What the daemon tells of this generation while it runs.
#include <optional>
#include <utility>

#include "agent/daemon_agent.h"
#include "agent/deadlines.h"
#include "core/os/boot_time.h"
#include "core/proto_time.h"
#include "core/wait_messages.h"

namespace meshrun::agent {
namespace {

// Nobody waits longer for a flight record.
constexpr std::chrono::seconds kUploadTimeout(2);
// A watch lasts as long as the generation; it is opened anew from time to time.
constexpr std::chrono::hours kWatchTimeout(24);

}  // namespace

void DaemonAgent::OnStop(std::function<void(std::string)> on_stop) {
  MutexLock lock(mu_);
  watchers_.emplace_back([this, on_stop = std::move(on_stop)] {
    std::optional<std::string> reason;
    ReadEvents([&](const v1::WatchGenerationResponse& event) {
      if (event.stopping()) reason = event.reason();
      return !reason.has_value();
    });
    if (reason) on_stop(*reason);
  });
}

void DaemonAgent::Watch(GenerationListener listener) {
  MutexLock lock(mu_);
  // Past verdicts are told again with each stream; they may not end later operations, of this
  // listener or of a later one.
  watchers_.emplace_back([this, listener = std::move(listener), known = seen_verdicts_]() mutable {
    ReadEvents([&](const v1::WatchGenerationResponse& event) {
      if (event.stopping()) listener.on_stopping(event.reason());
      for (const v1::RankLost& lost : event.news().lost()) {
        listener.on_lost(lost.rank(), lost.reason());
      }
      for (const int rank : event.news().left()) listener.on_left(rank);
      for (const v1::WaitVerdict& verdict : event.news().verdicts()) {
        if (verdict.number() != 0) {
          if (!known.insert(verdict.number()).second) continue;
          RememberVerdict(verdict.number());
        }
        listener.on_verdict(FromProto(verdict));
      }
      if (event.has_quiesce() && listener.on_quiesce) {
        listener.on_quiesce(
            {event.quiesce().reason(), event.quiesce().save(),
             std::chrono::duration_cast<Milliseconds>(FromProto(event.quiesce().deadline()))});
      }
      if (event.has_new_generation() && listener.on_superseded) {
        listener.on_superseded(event.new_generation().fence().generation());
      }
      if (event.flight_record_request() != 0 && listener.flight_record) {
        const auto most = static_cast<int>(event.flight_record_operations());
        Upload(event.flight_record_request(), listener.flight_record(most));
      }
      return true;
    });
  });
}

void DaemonAgent::RememberVerdict(uint64_t number) {
  MutexLock lock(mu_);
  seen_verdicts_.insert(number);
}

void DaemonAgent::ReadEvents(
    const std::function<bool(const v1::WatchGenerationResponse&)>& listener) {
  auto request = NewRequest<v1::WatchGenerationRequest>();
  bool goes_on = true;
  bool again = false;
  absl::Status status;
  do {
    status = calls_.Run(After(kWatchTimeout), [&](grpc::ClientContext& context, auto) {
      if (std::exchange(again, true)) {
        const absl::Status resent = ResendWait();
        if (absl::IsUnavailable(resent) || absl::IsDeadlineExceeded(resent)) {
          return grpc::Status(grpc::StatusCode::UNAVAILABLE, std::string(resent.message()));
        }
      }
      const auto reader = agent_->WatchGeneration(&context, request);
      v1::WatchGenerationResponse event;
      while (goes_on && reader->Read(&event)) goes_on = listener(event);
      if (!goes_on) context.TryCancel();
      const grpc::Status end = reader->Finish();
      return goes_on ? end : grpc::Status::OK;
    });
  } while (absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status));
}

void DaemonAgent::Upload(uint64_t request, std::string flight_record) {
  auto upload = NewRequest<v1::UploadFlightRecordRequest>();
  upload.set_request(request);
  upload.mutable_record()->set_rank(environment_.rank);
  const auto steady = std::chrono::steady_clock::now().time_since_epoch();
  upload.mutable_record()->set_steady_nanos(std::chrono::nanoseconds(steady).count());
  upload.mutable_record()->set_boottime_nanos(os::BootTimeNow().count());
  if (flight_record.empty()) {
    upload.mutable_record()->set_error("its process groups have ended");
  } else {
    upload.mutable_record()->set_json(std::move(flight_record));
  }
  v1::UploadFlightRecordResponse response;
  // The person who asked may be gone. The coordinator names the ranks that did not answer.
  static_cast<void>(calls_.Run(After(kUploadTimeout), [&](grpc::ClientContext& context, auto) {
    return agent_->UploadFlightRecord(&context, upload, &response);
  }));
}

}  // namespace meshrun::agent
