// How the other ranks find the hub of a HubWatch. No socket blocks; the caller looks names up and
// waits for connections.
//
// Threads: any. Errors: UNAVAILABLE, with the addresses and the system's reason.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/os/fd.h"

namespace meshrun::ucx {

// Where the hub listens, and what a rank must say to be let in.
struct HubEndpoint {
  std::string token;
  std::string port;
  // Names or numbers, the likeliest first: which of them leads to the hub depends on who asks.
  std::vector<std::string> addresses;

  // Its form in the store.
  std::string text() const;
  static std::optional<HubEndpoint> parse(std::string_view text);
  // "10.0.0.1 or node-a port 4711".
  std::string name() const;
};

// On a port of the system's choice, which it tells. At all of this host's addresses, since peers
// may come by any network; `is_local`: at 127.0.0.1 alone.
absl::StatusOr<os::UniqueFd> listen_at_any_port(bool is_local, int backlog, std::string* port);

// Tries one address after the other, each for at most 5 s, and waits for the first that answers.
absl::StatusOr<os::UniqueFd> connect_to(const HubEndpoint& hub,
                                        std::chrono::steady_clock::time_point deadline);

// As poll() takes them; 0 when it has passed.
int milliseconds_until(std::chrono::steady_clock::time_point deadline);

}  // namespace meshrun::ucx
