// Where a coordinator listens, and where everybody looks for one, when nobody says otherwise: a
// Unix socket in a directory of the user alone.
//
// In this order, the first directory that is usable:
//   $XDG_RUNTIME_DIR/meshrun, /run/user/UID/meshrun        where that parent is this user's own
//   $XDG_STATE_HOME/meshrun/HOST, ~/.local/state/meshrun/HOST
// None of them can be made by another user, at any time: /tmp is never used. HOST keeps the hosts
// apart that share a home.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace meshrun::rpc {

// Value of a variable, nullptr when it is not set.
using GetVariable = std::function<const char*(const char*)>;

// "unix:PATH" for a coordinator. FAILED_PRECONDITION: no variable names a usable directory.
// INVALID_ARGUMENT: the path is longer than the system allows.
absl::StatusOr<std::string> DefaultListenAddress(const GetVariable& get);
absl::StatusOr<std::string> DefaultListenAddress();

// "unix:PATH" for those who connect: the first of these places that has a socket (a coordinator
// started by cron may know no $XDG_RUNTIME_DIR), else as DefaultListenAddress.
absl::StatusOr<std::string> DefaultConnectAddress(const GetVariable& get);
absl::StatusOr<std::string> DefaultConnectAddress();

// A directory for the sockets that belong to `state_dir`, the longest of which adds
// `longest_below` bytes: the state directory itself, or, where the paths would be too long, a short
// one of this user under $XDG_RUNTIME_DIR or /tmp, made if it is missing. Errors: as
// os::MakePrivateDirectory.
absl::StatusOr<std::string> SocketDirectory(const std::string& state_dir, size_t longest_below);

}  // namespace meshrun::rpc
