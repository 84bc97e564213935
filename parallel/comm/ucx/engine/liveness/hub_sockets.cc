#include "parallel/comm/ucx/engine/liveness/hub_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "fmt/format.h"

namespace meshrun::ucx {
namespace {

struct Addresses {
  Addresses() = default;
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  ~Addresses() {
    if (list != nullptr) freeaddrinfo(list);
  }
  // Null for `name`: all of this host's.
  int resolve(const char* name, const char* port, int family, int flags) {
    addrinfo hints{};
    hints.ai_family = family;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    return getaddrinfo(name, port, &hints, &list);
  }
  addrinfo* list = nullptr;
};

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

absl::Status unavailable(const std::string& what, int error) {
  return absl::UnavailableError(fmt::format("{}: {}", what, std::strerror(error)));
}

}  // namespace

absl::StatusOr<os::UniqueFd> listen_at(const std::string& address, int backlog, std::string* port) {
  const std::string what = fmt::format("rank 0 cannot listen at {}", address);
  Addresses own, all;
  if (const int error = own.resolve(address.c_str(), "0", AF_UNSPEC, 0)) {
    return absl::UnavailableError(fmt::format("{}: {}", what, gai_strerror(error)));
  }
  const addrinfo* at = own.list;
  if (!is_loopback(*at->ai_addr)) {
    if (const int error = all.resolve(nullptr, "0", at->ai_family, AI_PASSIVE)) {
      return absl::UnavailableError(fmt::format("{}: {}", what, gai_strerror(error)));
    }
    at = all.list;
  }
  os::UniqueFd fd(socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  auto* const bound_address = reinterpret_cast<sockaddr*>(&bound);
  if (!fd || bind(fd.get(), at->ai_addr, at->ai_addrlen) != 0 || listen(fd.get(), backlog) != 0 ||
      getsockname(fd.get(), bound_address, &length) != 0) {
    return unavailable(what, errno);
  }
  std::array<char, NI_MAXSERV> service{};
  getnameinfo(bound_address, length, nullptr, 0, service.data(), service.size(), NI_NUMERICSERV);
  *port = service.data();
  return fd;
}

int milliseconds_until(std::chrono::steady_clock::time_point deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30));
}

absl::StatusOr<os::UniqueFd> connect_to(const HubEndpoint& hub,
                                        std::chrono::steady_clock::time_point deadline) {
  const std::string what = fmt::format("rank 0 cannot be reached at {}", hub.name());
  Addresses found;
  if (const int error = found.resolve(hub.address.c_str(), hub.port.c_str(), AF_UNSPEC, 0)) {
    return absl::UnavailableError(fmt::format("{}: {}", what, gai_strerror(error)));
  }
  int error = ETIMEDOUT;
  for (const addrinfo* at = found.list; at != nullptr; at = at->ai_next) {
    os::UniqueFd fd(socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd && connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0) return fd;
    error = errno;
    if (!fd || error != EINPROGRESS) continue;
    pollfd event{fd.get(), POLLOUT, 0};
    while (poll(&event, 1, milliseconds_until(deadline)) < 0 && errno == EINTR) continue;
    if (event.revents == 0) return unavailable(what, ETIMEDOUT);
    socklen_t length = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error == 0) return fd;
  }
  return unavailable(what, error);
}

}  // namespace meshrun::ucx
