#include "core/os/tcp_listeners.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "core/status.h"

namespace meshrun::os {
namespace {

constexpr int kBacklog = 4096;

struct HostPort {
  std::string host;
  std::string port;
};

absl::StatusOr<HostPort> Split(const std::string& address) {
  const size_t colon = address.rfind(':');
  HostPort split{address.substr(0, colon), address.substr(colon + 1)};
  int port = -1;
  const char* const end = split.port.data() + split.port.size();
  const auto [stop, error] = std::from_chars(split.port.data(), end, port);
  if (colon == std::string::npos || error != std::errc() || stop != end || port < 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' names no port: write HOST:PORT, for example 0.0.0.0:7480", address));
  }
  if (split.host.starts_with('[') && split.host.ends_with(']')) {
    split.host = split.host.substr(1, split.host.size() - 2);
  }
  return split;
}

absl::Status Taken(const std::string& address, std::string_view flag) {
  return absl::AlreadyExistsError(fmt::format(
      "cannot listen on {}: it is taken, or not this host's; choose another {}, or port 0 for any "
      "free one",
      address, flag));
}

// False with errno.
bool Bind(const UniqueFd& socket, const sockaddr* address, socklen_t size, int receive_bytes) {
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // Accepted sockets inherit it.
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
  return ::bind(socket.get(), address, size) == 0 && ::listen(socket.get(), kBacklog) == 0;
}

constexpr int kSocketKind = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

// Takes IPv4's connections too. Absent: this host has no IPv6.
std::optional<UniqueFd> BindWildcard(uint16_t port, int receive_bytes, bool* taken) {
  UniqueFd socket(::socket(AF_INET6, kSocketKind, 0));
  const int off = 0;
  if (!socket || ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0) {
    return std::nullopt;
  }
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(port);
  if (Bind(socket, reinterpret_cast<const sockaddr*>(&any), sizeof any, receive_bytes))
    return socket;
  *taken = errno == EADDRINUSE;
  return std::nullopt;
}

int PortOf(const UniqueFd& socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

void SetPort(sockaddr* address, int port) {
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(static_cast<uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(static_cast<uint16_t>(port));
  }
}

}  // namespace

absl::StatusOr<TcpListeners> ListenOnTcp(const std::string& address, int receive_bytes,
                                         std::string_view flag) {
  MESHRUN_ASSIGN_OR_RETURN(const HostPort asked, Split(address));
  std::vector<UniqueFd> listeners;
  const int port = std::stoi(asked.port);
  if (asked.host == "0.0.0.0" || asked.host == "::") {
    bool taken = false;
    if (auto socket = BindWildcard(static_cast<uint16_t>(port), receive_bytes, &taken)) {
      listeners.push_back(*std::move(socket));
    } else if (taken) {
      return Taken(address, flag);
    }
  }
  if (listeners.empty()) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    addrinfo* found = nullptr;
    const char* const host = asked.host.empty() ? nullptr : asked.host.c_str();
    if (const int error = ::getaddrinfo(host, asked.port.c_str(), &hints, &found); error != 0) {
      return absl::InvalidArgumentError(fmt::format("cannot listen on {}: '{}' has no address ({})",
                                                    address, asked.host, ::gai_strerror(error)));
    }
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
    for (addrinfo* each = found; each != nullptr; each = each->ai_next) {
      UniqueFd socket(::socket(each->ai_family, kSocketKind, 0));
      if (!socket) continue;
      const int on = 1;
      if (each->ai_family == AF_INET6) {
        ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
      }
      // All addresses of a name get one port.
      if (!listeners.empty()) SetPort(each->ai_addr, PortOf(listeners[0]));
      if (Bind(socket, each->ai_addr, each->ai_addrlen, receive_bytes)) {
        listeners.push_back(std::move(socket));
      } else if (errno == EADDRINUSE) {
        return Taken(address, flag);
      }
    }
  }
  if (listeners.empty()) return Taken(address, flag);
  const int bound = PortOf(listeners[0]);
  return TcpListeners{std::move(listeners), bound};
}

Accepted Accept(int listener) {
  Accepted out;
  socklen_t size = sizeof out.from;
  out.socket.reset(::accept4(listener, reinterpret_cast<sockaddr*>(&out.from), &size,
                             SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (out.socket) return out;
  out.exhausted = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
  out.may_be_more = !out.exhausted && errno != EAGAIN;
  return out;
}

Peer PeerOf(const sockaddr_storage& from) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (from.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(from);
    ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return {text.data(), fmt::format("ipv4:{}:{}", text.data(), ntohs(v4.sin_port))};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(from);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    ::inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text.data(), text.size());
    return {text.data(), fmt::format("ipv4:{}:{}", text.data(), ntohs(v6.sin6_port))};
  }
  ::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  std::string address = text.data();
  if (v6.sin6_scope_id != 0) address += fmt::format("%{}", v6.sin6_scope_id);
  return {address, fmt::format("ipv6:[{}]:{}", address, ntohs(v6.sin6_port))};
}

}  // namespace meshrun::os
