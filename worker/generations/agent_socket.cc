#include "worker/generations/agent_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/log.h"
#include "core/rpc/unix_socket.h"
#include "core/status.h"
#include "worker/supervisor/unix_socket.h"

namespace meshrun::worker {
namespace {

// The directory keeps others out; this holds should somebody open it later.
bool MayConnect(int fd) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

}  // namespace

absl::StatusOr<os::UniqueFd> AgentSocket::Bind(const std::string& path) {
  MESHRUN_RETURN_IF_ERROR(rpc::MakeSocketDirectory(path));
  // All ranks of a host may come at once.
  return ListenUnix(path, SOMAXCONN);
}

absl::StatusOr<std::unique_ptr<AgentSocket>> AgentSocket::Listen(EventLoop& loop,
                                                                 const std::string& path,
                                                                 OnConnection on_connection) {
  MESHRUN_ASSIGN_OR_RETURN(os::UniqueFd listener, Bind(path));
  return std::make_unique<AgentSocket>(loop, path, std::move(listener), std::move(on_connection));
}

AgentSocket::AgentSocket(EventLoop& loop, std::string path, os::UniqueFd listener,
                         OnConnection on_connection)
    : loop_(loop),
      path_(std::move(path)),
      listener_(std::move(listener)),
      on_connection_(std::move(on_connection)) {
  loop_.Watch(listener_.get(), POLLIN, [this](short) { Accept(); });
}

AgentSocket::~AgentSocket() { loop_.Unwatch(listener_.get()); }

void AgentSocket::Accept() {
  while (true) {
    os::UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN) {
        log::Warning("cannot accept a rank's connection",
                     {{"socket", path_}, {"error", std::strerror(errno)}});
      }
      return;
    }
    if (MayConnect(fd.get())) on_connection_(std::move(fd));
  }
}

}  // namespace meshrun::worker
