// Answers of a streaming call as server-sent events. Not thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "coordinator/api/local_call.h"

namespace meshrun::coordinator {

// "event: NAME\ndata: DATA\n\n". `data` has no line break.
std::string EventText(std::string_view name, std::string_view data);

class EventStream {
 public:
  // What an answer is as events; empty: none.
  using Write = std::function<std::string(const google::protobuf::Message&)>;
  // What is left at the end; may be null.
  using Rest = std::function<std::string()>;
  // `heartbeat`: a reader that hears nothing for longer takes the connection for broken.
  EventStream(std::shared_ptr<LocalStream> stream, Write write, Rest rest,
              std::chrono::milliseconds heartbeat)
      : stream_(std::move(stream)),
        write_(std::move(write)),
        rest_(std::move(rest)),
        heartbeat_(heartbeat) {}
  ~EventStream() { stream_->Leave(); }

  // Waits for the first answer, which may come later. An error: the call ends with it, before any
  // answer; UNAVAILABLE: it has nowhere to go.
  absl::Status Begin(const Patience& patience);
  // Bytes to send; empty: none yet; nullopt: the end. The last event is "end", or "error".
  std::optional<std::string> Next(std::chrono::milliseconds wait);

 private:
  std::string Last();

  const std::shared_ptr<LocalStream> stream_;
  const Write write_;
  const Rest rest_;
  const std::chrono::milliseconds heartbeat_;
  std::string begun_;
  bool over_ = false;
  Deadline sent_at_ = std::chrono::steady_clock::now();
};

}  // namespace meshrun::coordinator
