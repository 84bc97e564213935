// Sockets that listen for TCP connections at a name.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/os/fd.h"

namespace meshrun::os {

struct TcpListeners {
  // One for each address of the name, all at one port. Non-blocking, closed on exec.
  std::vector<UniqueFd> sockets;
  int port = 0;
};

// Binds and listens at HOST:PORT (port 0: any free one); 0.0.0.0 and [::] are all addresses of both
// families. `receive_bytes`: the receive buffer of the accepted connections. INVALID_ARGUMENT: HOST
// has no address, or PORT is none. ALREADY_EXISTS: it is taken, or not this host's.
absl::StatusOr<TcpListeners> ListenOnTcp(const std::string& address, int receive_bytes);

}  // namespace meshrun::os
