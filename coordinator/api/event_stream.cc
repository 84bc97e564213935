#include "coordinator/api/event_stream.h"

#include <fmt/format.h>

#include <utility>

#include "core/http/message.h"

namespace meshrun::coordinator {

std::string EventText(std::string_view name, std::string_view data) {
  return fmt::format("event: {}\ndata: {}\n\n", name, data);
}

std::string EventStream::Last() {
  std::string out = rest_ == nullptr ? "" : rest_();
  const absl::Status status = stream_->status();
  // Ends with a line break.
  std::string error = http::ErrorResponse(status).body;
  if (error.ends_with('\n')) error.pop_back();
  return out + (status.ok() ? EventText("end", "{}") : EventText("error", error));
}

absl::Status EventStream::Begin(const Patience& patience) {
  auto taken = LocalStream::Taken::kNothing;
  const absl::Status waited = AwaitPatiently(patience, "", [&](Deadline step) {
    taken = stream_->Take(
        step, [this](const google::protobuf::Message& answer) { begun_ = write_(answer); });
    return taken != LocalStream::Taken::kNothing;
  });
  if (!waited.ok() && !absl::IsDeadlineExceeded(waited)) return waited;
  if (taken != LocalStream::Taken::kEnd) return absl::OkStatus();
  over_ = true;
  begun_ = Last();
  return stream_->status();
}

std::optional<std::string> EventStream::Next(std::chrono::milliseconds wait) {
  const auto now = std::chrono::steady_clock::now();
  std::string out = std::exchange(begun_, "");
  if (out.empty() && over_) return std::nullopt;
  if (out.empty()) {
    const auto taken = stream_->Take(
        now + wait, [&](const google::protobuf::Message& answer) { out = write_(answer); });
    if (taken == LocalStream::Taken::kEnd) {
      over_ = true;
      out = Last();
    }
  }
  if (out.empty() && now - sent_at_ >= heartbeat_) out = ": the call goes on\n\n";
  if (!out.empty()) sent_at_ = now;
  return out;
}

}  // namespace meshrun::coordinator
