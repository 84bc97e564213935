// A daemon's connection to one supervisor. Lives on the event loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/os/fd.h"
#include "meshrun/v1/supervisor.pb.h"
#include "worker/event_loop/event_loop.h"
#include "worker/supervisor/frame.h"

namespace meshrun::worker {

class SupervisorLink {
 public:
  struct Handler {
    std::function<void(const v1::SupervisorResponse&)> on_message;
    // The supervisor is gone, or has replaced this connection by a newer one. Called once.
    std::function<void()> on_closed;
  };

  // NOT_FOUND when nobody listens at `socket_path`.
  static absl::StatusOr<std::unique_ptr<SupervisorLink>> Connect(EventLoop& loop,
                                                                 const std::string& socket_path,
                                                                 Handler handler);
  // On a connection that has been made.
  SupervisorLink(EventLoop& loop, os::UniqueFd fd, Handler handler);
  ~SupervisorLink();

  // What the socket does not take at once is kept; after a close it is dropped.
  void Send(const v1::SupervisorRequest& request);

 private:
  void Watch();
  void OnReady(short revents);
  void Close();

  EventLoop& loop_;
  os::UniqueFd fd_;
  Handler handler_;
  FrameReader reader_;
  FrameWriter writer_;
  // Expires with this object: a handler may destroy it.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace meshrun::worker
