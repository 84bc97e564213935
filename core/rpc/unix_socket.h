// Unix sockets as addresses: "unix:PATH". Their directory is what keeps other users out, so both
// ends check it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/os/fd.h"

namespace meshrun::rpc {

// PATH of "unix:PATH" or "unix:///PATH"; absent for any other address.
std::optional<std::string> UnixPath(std::string_view address);

// The address as gRPC wants it. It reads "unix:PATH" as a URI: letters, digits and "/-._~" stay
// as they are, all other bytes of the path are written as %XX.
std::string GrpcTarget(const std::string& address);

// For a client, before it sends anything to `path`. The directory must be this user's own and
// closed to others, or root's and writable by nobody else, so that no other user can have put a
// socket there. NOT_FOUND: there is no such directory. INVALID_ARGUMENT: the path is too long.
// PERMISSION_DENIED: see os::CheckPrivateDirectory.
absl::Status CheckSocketDirectory(const std::string& path);

// The same, after making the directory where it is missing.
absl::Status MakeSocketDirectory(const std::string& path);

// The right to listen at a path, held through a lock on the file PATH.lock beside it. The kernel
// frees the lock of a process that died, and its socket is then replaced. The lock's file stays:
// removing it would let two processes lock two files of one name.
class SocketClaim {
 public:
  // Makes the directory where it is missing. ALREADY_EXISTS: a live process listens there, or holds
  // the lock; the sentence names the flag. INVALID_ARGUMENT: the path is too long.
  // PERMISSION_DENIED: see os::CheckPrivateDirectory.
  static absl::StatusOr<SocketClaim> Take(const std::string& path,
                                          std::string_view flag = "--listen");

  SocketClaim() = default;

 private:
  os::UniqueFd lock_;
};

}  // namespace meshrun::rpc
