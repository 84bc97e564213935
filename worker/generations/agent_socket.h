// A Unix socket at which ranks, or a probe, reach this daemon. gRPC's server cannot begin to listen
// at one more address while it runs, so connections are accepted here and handed to it.
//
// Lives on the event loop's thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/os/fd.h"
#include "meshrun/v1/supervisor.pb.h"
#include "worker/event_loop/event_loop.h"

namespace meshrun::worker {

class AgentSocket {
 public:
  using OnConnection = std::function<void(os::UniqueFd)>;

  // Makes the directory of `path` where it is missing; it must be this user's alone. A socket that
  // a process left there is replaced. `on_connection` gets connections of this user and of root, by
  // the kernel's word; others are closed. Errors: see os::MakePrivateDirectory; the socket's path.
  static absl::StatusOr<std::unique_ptr<AgentSocket>> Listen(EventLoop& loop,
                                                             const std::string& path,
                                                             OnConnection on_connection);
  // The two halves of Listen: what a file system may hold up, on any thread, and the rest. The
  // socket's file stays when the object ends.
  // `user`: the job's user, if that is not the daemon's; null: the daemon's user, or the owner of a
  // socket that an earlier incarnation left there. If the user is not the daemon's, the directory
  // is passable and the socket is that user's alone.
  static absl::StatusOr<os::UniqueFd> Bind(const std::string& path,
                                           const v1::RankUser* user = nullptr);
  AgentSocket(EventLoop& loop, std::string path, os::UniqueFd listener, OnConnection on_connection);
  ~AgentSocket();

 private:
  void Accept();

  EventLoop& loop_;
  const std::string path_;
  // User of the ranks.
  const uid_t user_;
  const os::UniqueFd listener_;
  const OnConnection on_connection_;
};

}  // namespace meshrun::worker
