// A call that is passed on: a thread of its own reads the answer, and whoever passes it on takes it
// from here. Thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "client/http/http_client.h"
#include "core/mutex.h"

namespace meshrun::client {

class ForwardedCall {
 public:
  // INVALID_ARGUMENT: as HttpExchange::Make.
  static absl::StatusOr<std::unique_ptr<ForwardedCall>> Begin(const HttpTarget& target,
                                                              HttpCall call);
  // Ends the call.
  ~ForwardedCall();

  // Whether nobody wants the answer any more; asked ten times a second.
  using Gone = std::function<bool()>;
  // Waits for the answer's head. UNAVAILABLE: there is none. CANCELLED: nobody wants it.
  absl::StatusOr<HttpHead> Head(const Gone& gone);
  // Bytes of the body; empty: none came in so long; nullopt: the body has ended.
  std::optional<std::string> Next(std::chrono::milliseconds wait);
  // All of it, or what there is when nobody wants it.
  std::string Rest(const Gone& gone);

 private:
  // Bytes that wait to be taken: then the answer is not read further.
  static constexpr size_t kMostWaiting = 256 << 10;

  ForwardedCall(std::unique_ptr<HttpExchange> exchange, HttpCall call);
  void Run(const HttpCall& call);
  bool Add(std::string_view data);

  const std::unique_ptr<HttpExchange> exchange_;
  Mutex mu_;
  CondVar changed_;
  std::optional<HttpHead> head_ MESHRUN_GUARDED_BY(mu_);
  std::string waiting_ MESHRUN_GUARDED_BY(mu_);
  absl::Status end_ MESHRUN_GUARDED_BY(mu_);
  bool ended_ MESHRUN_GUARDED_BY(mu_) = false;
  bool left_ MESHRUN_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace meshrun::client
