#include "worker/generations/agent_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/log.h"
#include "core/os/private_directory.h"
#include "core/rpc/unix_socket.h"
#include "core/status.h"
#include "worker/supervisor/unix_socket.h"

namespace meshrun::worker {
namespace {

// The directory keeps others out; this holds should somebody open it later.
bool MayConnect(int fd, uid_t user) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0 || peer.uid == user);
}

uid_t OwnerOf(const std::string& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0 ? info.st_uid : ::geteuid();
}

}  // namespace

absl::StatusOr<os::UniqueFd> AgentSocket::Bind(const std::string& path, const v1::RankUser* user) {
  struct stat before = {};
  v1::RankUser kept;
  if (user == nullptr && ::lstat(path.c_str(), &before) == 0 && before.st_uid != ::geteuid()) {
    // Owner of the socket that an earlier incarnation of this daemon left.
    kept.set_uid(before.st_uid);
    kept.set_gid(before.st_gid);
    user = &kept;
  }
  if (user != nullptr) {
    MESHRUN_RETURN_IF_ERROR(os::MakePassableDirectory(path.substr(0, path.rfind('/'))));
    MESHRUN_ASSIGN_OR_RETURN(os::UniqueFd listener, ListenUnix(path, SOMAXCONN));
    MESHRUN_RETURN_IF_ERROR(GiveSocket(path, user->uid(), user->gid()));
    return listener;
  }
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
      user_(OwnerOf(path_)),
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
    if (MayConnect(fd.get(), user_)) on_connection_(std::move(fd));
  }
}

}  // namespace meshrun::worker
