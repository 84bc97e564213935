// How the other ranks find the hub of a HubWatch. None of the sockets blocks; names are looked up,
// and connections waited for, by the caller.
//
// Threads: any. Errors: UNAVAILABLE, with the address and the system's reason.
#pragma once

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "core/os/fd.h"
#include "fmt/format.h"

namespace meshrun::ucx {

// Where the hub listens, and what a rank must say to be let in. text() is its form in the store.
struct HubEndpoint {
  std::string token;
  std::string port;
  std::string address;

  std::string text() const { return fmt::format("{} {} {}", token, port, address); }
  std::string name() const { return fmt::format("{} port {}", address, port); }
};

// On a port of the system's choice, which it tells. At all of this host's addresses, since peers
// may come by another network; a loopback address at that one alone.
absl::StatusOr<os::UniqueFd> listen_at(const std::string& address, int backlog, std::string* port);

// Waits for it.
absl::StatusOr<os::UniqueFd> connect_to(const HubEndpoint& hub,
                                        std::chrono::steady_clock::time_point deadline);

// As poll() takes them; 0 when it has passed.
int milliseconds_until(std::chrono::steady_clock::time_point deadline);

}  // namespace meshrun::ucx
