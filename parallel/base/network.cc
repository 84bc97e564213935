#include "parallel/base/network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "core/os/routes.h"
#include "fmt/format.h"

namespace meshrun {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> resolve(const std::string& host, int port, int type) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = type;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::NotFoundError(
        fmt::format("the host \"{}\" does not resolve: {}", host, gai_strerror(error)));
  }
  return AddressList(found, &freeaddrinfo);
}

absl::Status bind_to(int fd, const sockaddr* address, socklen_t length, const std::string& host,
                     int port) {
  const int on = 1;
  // A server that ended leaves connections in TIME_WAIT; they must not keep the next one from the
  // port.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd, address, length) == 0) return absl::OkStatus();
  const std::string text =
      fmt::format("cannot bind port {} for \"{}\": {}", port, host, std::strerror(errno));
  return errno == EADDRINUSE ? absl::AlreadyExistsError(text) : absl::InvalidArgumentError(text);
}

absl::StatusOr<std::string> numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST];
  const int error = getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  return std::string(text);
}

int open_socket(int family, int type) { return socket(family, type | SOCK_CLOEXEC, 0); }

}  // namespace

bool is_loopback(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  if (host == "localhost") return true;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::StatusOr<os::UniqueFd> bind_port(const std::string& host, int port) {
  if (is_loopback(host)) {
    const absl::StatusOr<AddressList> addresses =
        resolve(host == "localhost" ? "127.0.0.1" : host, port, SOCK_STREAM);
    if (!addresses.ok()) return addresses.status();
    const addrinfo& address = **addresses;
    os::UniqueFd socket(open_socket(address.ai_family, SOCK_STREAM));
    const absl::Status status =
        bind_to(socket.get(), address.ai_addr, address.ai_addrlen, host, port);
    if (!status.ok()) return status;
    return socket;
  }
  os::UniqueFd dual(open_socket(AF_INET6, SOCK_STREAM));
  if (dual.get() >= 0) {
    const int off = 0;
    setsockopt(dual.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(static_cast<uint16_t>(port));
    const absl::Status status =
        bind_to(dual.get(), reinterpret_cast<sockaddr*>(&any), sizeof(any), host, port);
    if (status.ok()) return dual;
    if (absl::IsAlreadyExists(status)) return status;
  }
  // A kernel without IPv6.
  os::UniqueFd socket(open_socket(AF_INET, SOCK_STREAM));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<uint16_t>(port));
  const absl::Status status =
      bind_to(socket.get(), reinterpret_cast<sockaddr*>(&any), sizeof(any), host, port);
  if (!status.ok()) return status;
  return socket;
}

int bound_port(const os::UniqueFd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

absl::StatusOr<std::string> probe(const std::string& host, int port,
                                  std::chrono::milliseconds timeout) {
  const absl::StatusOr<AddressList> addresses = resolve(host, port, SOCK_STREAM);
  if (!addresses.ok()) return addresses.status();
  int error = ETIMEDOUT;
  for (const addrinfo* address = addresses->get(); address != nullptr; address = address->ai_next) {
    os::UniqueFd socket(open_socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK));
    if (socket.get() < 0) continue;
    error = connect(socket.get(), address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      pollfd waiting{socket.get(), POLLOUT, 0};
      error = ETIMEDOUT;
      if (poll(&waiting, 1, static_cast<int>(timeout.count())) != 1) continue;
      socklen_t length = sizeof(error);
      getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error == 0) return numeric(address->ai_addr, address->ai_addrlen);
  }
  return absl::UnavailableError(std::strerror(error));
}

absl::StatusOr<std::string> local_address_towards(const std::string& host) {
  // Connecting a datagram socket only chooses the route. Any port will do.
  const absl::StatusOr<AddressList> addresses = resolve(host, 9, SOCK_DGRAM);
  if (!addresses.ok()) return addresses.status();
  for (const addrinfo* address = addresses->get(); address != nullptr; address = address->ai_next) {
    os::UniqueFd socket(open_socket(address->ai_family, SOCK_DGRAM));
    if (socket.get() < 0 || connect(socket.get(), address->ai_addr, address->ai_addrlen) != 0)
      continue;
    sockaddr_storage local{};
    socklen_t length = sizeof(local);
    if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &length) != 0) continue;
    absl::StatusOr<std::string> text = numeric(reinterpret_cast<sockaddr*>(&local), length);
    if (text.ok()) return text;
  }
  return absl::UnavailableError(fmt::format("no route to \"{}\"", host));
}

std::vector<std::string> interface_addresses() { return os::InterfaceAddresses(); }

}  // namespace meshrun
