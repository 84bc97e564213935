// Unix sockets at our own paths. All are non-blocking and closed on exec. Errors carry the path.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/os/fd.h"

namespace meshrun::worker {

// A socket left at `path` by a process that is gone is replaced.
absl::StatusOr<os::UniqueFd> ListenUnix(const std::string& path, int backlog = 8);
absl::StatusOr<os::UniqueFd> BindDatagrams(const std::string& path);

struct Datagram {
  // In the buffer.
  std::string_view text;
  // CLOCK_BOOTTIME when it was sent, by the kernel: the reader may come to it later. The time of
  // reading where the kernel does not say.
  std::chrono::nanoseconds sent{0};
};
// `fd`: a socket of BindDatagrams. Empty: nothing waits there.
std::optional<Datagram> ReceiveDatagram(int fd, std::span<char> buffer);

// NOT_FOUND when nobody listens at `path`.
absl::StatusOr<os::UniqueFd> ConnectUnix(const std::string& path);

// Makes a socket another user's alone. Its directory must be one that nobody else can write: the
// name is then the socket that was bound.
absl::Status GiveSocket(const std::string& path, uid_t uid, gid_t gid);

}  // namespace meshrun::worker
