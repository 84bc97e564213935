#include "coordinator/state_machine/audit.h"

#include <fmt/format.h>

#include <utility>

#include "coordinator/state_machine/callers.h"
#include "core/proto_time.h"
#include "core/signal_name.h"
#include "core/text.h"
#include "core/utf8.h"

namespace meshrun::coordinator {
namespace {

constexpr size_t kMostMessageBytes = 1000;
constexpr size_t kMostTargetBytes = 256;

bool IsChange(const v1::StateEvent& event) {
  switch (event.event_case()) {
    case v1::StateEvent::kSubmitJob:
    case v1::StateEvent::kCancelJob:
    case v1::StateEvent::kUpdateJob:
    case v1::StateEvent::kSignalJob:
    case v1::StateEvent::kSetPolicy:
    case v1::StateEvent::kDrainNode:
    case v1::StateEvent::kUndrainNode:
    case v1::StateEvent::kRemoveNode:
      return true;
    case v1::StateEvent::kSessionMessage:
      return event.session_message().message().has_hello();
    default:
      return false;
  }
}

bool IsRefusal(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status);
}

// What was asked for, in a few words.
std::string RequestOf(const v1::StateEvent& event) {
  switch (event.event_case()) {
    case v1::StateEvent::kSubmitJob: {
      const v1::JobSpec& spec = event.submit_job().spec();
      return spec.has_array() ? fmt::format("{} jobs", spec.array().indices_size()) : "";
    }
    case v1::StateEvent::kCancelJob:
      return event.cancel_job().now() ? "now" : "";
    case v1::StateEvent::kUpdateJob: {
      const v1::UpdateJobRequest& update = event.update_job();
      std::string out = !update.has_hold() ? "" : update.hold() ? "hold" : "release";
      if (update.has_priority())
        out += fmt::format("{}priority {}", out.empty() ? "" : ", ", update.priority());
      return out;
    }
    case v1::StateEvent::kSignalJob:
      return SignalName(event.signal_job().signal());
    case v1::StateEvent::kDrainNode:
      return event.drain_node().has_deadline()
                 ? "within " + FormatDuration(FromProto(event.drain_node().deadline()))
                 : "";
    case v1::StateEvent::kRemoveNode:
      return event.remove_node().gone() ? "gone" : "";
    default:
      return "";
  }
}

}  // namespace

std::string Audit::TargetOf(const v1::StateEvent& event) const {
  const auto job = [this](const std::string& name) {
    const auto found = jobs_.Lookup(name);
    return found.ok() ? (*found)->id() : name;
  };
  switch (event.event_case()) {
    case v1::StateEvent::kSubmitJob:
      return event.submit_job().spec().name();
    case v1::StateEvent::kDrainNode:
      return event.drain_node().node();
    case v1::StateEvent::kUndrainNode:
      return event.undrain_node().node();
    case v1::StateEvent::kRemoveNode:
      return event.remove_node().node();
    case v1::StateEvent::kSessionMessage:
      return event.session_message().message().hello().name();
    default:
      return job(JobIdOf(event));
  }
}

void Audit::OnStepped(const v1::StateEvent& event, const std::optional<absl::Status>& outcome,
                      const std::string& submitted) {
  const bool is_repeated = std::exchange(is_repeated_, false);
  v1::AuditRecord record;
  absl::Status status = outcome.value_or(absl::OkStatus());
  record.set_method(MethodOf(event));
  if (event.has_outside_call()) {
    const v1::OutsideCall& refused = event.outside_call();
    record.set_method(ReplaceBytes(refused.method()));
    record.set_not_recorded(refused.not_recorded());
    status = absl::Status(static_cast<absl::StatusCode>(refused.code()), refused.message());
  } else if (!IsChange(event) && !IsRefusal(status)) {
    return;
  } else if (status.ok()) {
    if (is_repeated) return;
  } else {
    const auto not_recorded = limit_.Admit(event.caller().user(), context_.now);
    if (!not_recorded.has_value()) return;
    record.set_not_recorded(*not_recorded);
  }
  const std::string target = submitted.empty() ? TargetOf(event) : submitted;
  *record.mutable_at() = ToProtoTimestamp(context_.wall);
  // The caller chooses these bytes. The next start could not read a record that is no UTF-8.
  record.set_actor(ReplaceBytes(event.caller().user()));
  record.set_certificate(event.caller().certificate());
  record.set_peer(ReplaceBytes(event.caller().peer()));
  record.set_target(std::string(Utf8Prefix(ReplaceBytes(target), kMostTargetBytes)));
  record.set_request(RequestOf(event));
  record.set_code(static_cast<int32_t>(status.code()));
  record.set_message(
      std::string(Utf8Prefix(ReplaceBytes(std::string(status.message())), kMostMessageBytes)));
  records_.Append(context_, context_.retention.audit_records(), std::move(record));
}

}  // namespace meshrun::coordinator
