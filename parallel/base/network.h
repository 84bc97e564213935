// Sockets and addresses that a store and its process groups are bound to. No LibTorch.
//
// Thread-safe. Errors: ALREADY_EXISTS (port taken), INVALID_ARGUMENT (no such local address),
// NOT_FOUND (host does not resolve), UNAVAILABLE (nobody listens, unreachable).
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/os/fd.h"

namespace meshrun {

// "localhost" and loopback addresses, without asking a resolver.
bool is_loopback(const std::string& host);

// Binds, without listening: to the loopback address where `host` is one, so that nobody outside
// reaches it, else to every address of this machine. Port 0 takes a free one.
absl::StatusOr<os::UniqueFd> bind_port(const std::string& host, int port);
int bound_port(const os::UniqueFd& socket);

// One attempt to connect; the connection is closed again. The numeric address that answered.
absl::StatusOr<std::string> probe(const std::string& host, int port,
                                  std::chrono::milliseconds timeout);

// This machine's address on the way to `host`: where that host reaches it. Sends nothing. On the
// way to this machine's own name or address it is a loopback one, of no use to others: Debian has
// the name at 127.0.1.1.
absl::StatusOr<std::string> local_address_towards(const std::string& host);

// The addresses of this machine's interfaces that run and lead out of it, without loopback and
// link-local ones, IPv4 first; at most 16. See core/os/routes.h.
std::vector<std::string> interface_addresses();

}  // namespace meshrun
