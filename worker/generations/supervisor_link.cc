#include "worker/generations/supervisor_link.h"

#include <poll.h>

#include <utility>

#include "core/status.h"
#include "worker/supervisor/unix_socket.h"

namespace meshrun::worker {

absl::StatusOr<std::unique_ptr<SupervisorLink>> SupervisorLink::Connect(
    EventLoop& loop, const std::string& socket_path, Handler handler) {
  MESHRUN_ASSIGN_OR_RETURN(os::UniqueFd fd, ConnectUnix(socket_path));
  return std::make_unique<SupervisorLink>(loop, std::move(fd), std::move(handler));
}

SupervisorLink::SupervisorLink(EventLoop& loop, os::UniqueFd fd, Handler handler)
    : loop_(loop), fd_(std::move(fd)), handler_(std::move(handler)) {
  Watch();
}

SupervisorLink::~SupervisorLink() {
  if (fd_) loop_.Unwatch(fd_.get());
}

void SupervisorLink::Send(const v1::SupervisorRequest& request) {
  if (!fd_) return;
  writer_.Append(request);
  // A broken connection shows in OnReady, which says so once.
  writer_.Flush(fd_.get());
  if (!writer_.empty()) Watch();
}

void SupervisorLink::Watch() {
  const short events = static_cast<short>(POLLIN | (writer_.empty() ? 0 : POLLOUT));
  loop_.Watch(fd_.get(), events, [this](short revents) { OnReady(revents); });
}

void SupervisorLink::OnReady(short revents) {
  const std::weak_ptr<bool> alive = alive_;
  if ((revents & POLLOUT) != 0) {
    writer_.Flush(fd_.get());
    if (writer_.empty()) Watch();
  }
  const bool open = reader_.ReadAvailable(fd_.get());
  while (const auto bytes = reader_.Next()) {
    v1::SupervisorResponse response;
    if (response.ParseFromString(*bytes)) handler_.on_message(response);
    if (alive.expired()) return;
  }
  if (!open) Close();
}

void SupervisorLink::Close() {
  loop_.Unwatch(fd_.get());
  fd_.reset();
  // The handler may destroy this object, and with it the function that runs.
  const auto on_closed = std::exchange(handler_.on_closed, nullptr);
  if (on_closed) on_closed();
}

}  // namespace meshrun::worker
