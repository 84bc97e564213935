// Sockets that listen for TCP connections at a name.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>
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
// has no address, or PORT is none. ALREADY_EXISTS: it is taken, or not this host's; the sentence
// names the flag.
absl::StatusOr<TcpListeners> ListenOnTcp(const std::string& address, int receive_bytes,
                                         std::string_view flag = "--listen");

// What waited at one of them, or at a Unix socket that does not block.
struct Accepted {
  // Non-blocking, closed on exec. Absent: see `may_be_more`.
  UniqueFd socket;
  sockaddr_storage from{};
  // Whether to ask once more: a connection that ended while it waited leaves others.
  bool may_be_more = true;
  // The process or the host has no descriptor or memory left for it; it waits on.
  bool exhausted = false;
};
Accepted Accept(int listener);

// Where a connection comes from.
struct Peer {
  // "10.0.0.1", "fe80::1%2".
  std::string address;
  // With its port, as gRPC writes it without percents: "ipv4:10.0.0.1:4242".
  std::string whole;
};
Peer PeerOf(const sockaddr_storage& from);

}  // namespace meshrun::os
