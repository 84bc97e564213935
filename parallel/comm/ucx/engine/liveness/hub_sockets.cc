#include "parallel/comm/ucx/engine/liveness/hub_sockets.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/network.h"
#include "parallel/comm/ucx/engine/liveness/hub_connection.h"

namespace meshrun::ucx {
namespace {

using Time = std::chrono::steady_clock::time_point;

// An address that a router swallows must not use up the time of the next one.
constexpr std::chrono::seconds kOneAddress{5};

struct Addresses {
  Addresses() = default;
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  ~Addresses() {
    if (list != nullptr) freeaddrinfo(list);
  }
  int resolve(const std::string& name, const std::string& port) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    return getaddrinfo(name.c_str(), port.c_str(), &hints, &list);
  }
  addrinfo* list = nullptr;
};

// Connected, or why not.
absl::StatusOr<os::UniqueFd> connect_to_one(const std::string& address, const std::string& port,
                                            Time deadline) {
  Addresses found;
  if (const int error = found.resolve(address, port)) {
    return absl::UnavailableError(gai_strerror(error));
  }
  int error = ETIMEDOUT;
  for (const addrinfo* at = found.list; at != nullptr; at = at->ai_next) {
    os::UniqueFd fd(socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd && connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0) return fd;
    error = errno;
    if (!fd || error != EINPROGRESS) continue;
    pollfd event{fd.get(), POLLOUT, 0};
    while (poll(&event, 1, milliseconds_until(deadline)) < 0 && errno == EINTR) continue;
    error = ETIMEDOUT;
    if (event.revents == 0) continue;
    socklen_t length = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error == 0) return fd;
  }
  return absl::UnavailableError(std::strerror(error));
}

}  // namespace

std::string HubEndpoint::text() const {
  return fmt::format("{} {} {}", token, port, fmt::join(addresses, " "));
}

std::optional<HubEndpoint> HubEndpoint::parse(std::string_view text) {
  const std::vector<std::string_view> said = words(text, 3);
  if (said.size() != 3) return std::nullopt;
  HubEndpoint endpoint{std::string(said[0]), std::string(said[1]), {}};
  for (const std::string_view address : words(said[2], said[2].size())) {
    endpoint.addresses.emplace_back(address);
  }
  return endpoint;
}

std::string HubEndpoint::name() const {
  return fmt::format("{} port {}", fmt::join(addresses, " or "), port);
}

absl::StatusOr<os::UniqueFd> listen_at_any_port(bool is_local, int backlog, std::string* port) {
  absl::StatusOr<os::UniqueFd> bound = bind_port(is_local ? "127.0.0.1" : "", 0);
  if (!bound.ok()) {
    return absl::UnavailableError(
        fmt::format("rank 0 cannot listen: {}", std::string(bound.status().message())));
  }
  *port = std::to_string(bound_port(*bound));
  os::UniqueFd fd = *std::move(bound);
  if (listen(fd.get(), backlog) != 0 || fcntl(fd.get(), F_SETFL, O_NONBLOCK) != 0) {
    return absl::UnavailableError(fmt::format("rank 0 cannot listen: {}", std::strerror(errno)));
  }
  return fd;
}

int milliseconds_until(std::chrono::steady_clock::time_point deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30));
}

absl::StatusOr<os::UniqueFd> connect_to(const HubEndpoint& hub, Time deadline) {
  std::vector<std::string> reasons;
  for (const std::string& address : hub.addresses) {
    const Time limit = std::min(deadline, Time::clock::now() + kOneAddress);
    absl::StatusOr<os::UniqueFd> fd = connect_to_one(address, hub.port, limit);
    if (fd.ok()) return fd;
    reasons.push_back(fmt::format("{}: {}", address, std::string(fd.status().message())));
  }
  return absl::UnavailableError(
      fmt::format("rank 0 cannot be reached at {} ({})", hub.name(), fmt::join(reasons, "; ")));
}

}  // namespace meshrun::ucx
