#include "client/cli/endpoint.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "client/cli/arguments.h"
#include "core/os/fd.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

struct Addresses {
  explicit Addresses(const Endpoint& endpoint) {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    error = ::getaddrinfo(endpoint.host.c_str(), fmt::format("{}", endpoint.port).c_str(), &hints,
                          &first);
  }
  ~Addresses() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  addrinfo* first = nullptr;
  int error = 0;
};

}  // namespace

std::string HostPort(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

bool IsNumericV6(const std::string& host) { return host.find(':') != std::string::npos; }

std::string Endpoint::Text() const { return HostPort(host, port); }

absl::StatusOr<Endpoint> ParseEndpoint(std::string_view flag, const std::string& text,
                                       int default_port) {
  const absl::Status wrong =
      absl::InvalidArgumentError(fmt::format("{} {}: write HOST or HOST:PORT", flag, text));
  Endpoint out = {text, default_port};
  std::string port;
  if (text.starts_with('[')) {
    const size_t bracket = text.find(']');
    if (bracket == std::string::npos) return wrong;
    out.host = text.substr(1, bracket - 1);
    const std::string rest = text.substr(bracket + 1);
    if (!rest.empty() && rest[0] != ':') return wrong;
    port = rest.empty() ? "" : rest.substr(1);
  } else if (const size_t colon = text.find(':');
             colon != std::string::npos && text.find(':', colon + 1) == std::string::npos) {
    out.host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (port.empty()) return wrong;
  }
  // No name has them, and certificates do not hold them.
  if (out.host.empty() || out.host.find_first_of("/ ,'\"") != std::string::npos) return wrong;
  if (!port.empty()) {
    MESHRUN_ASSIGN_OR_RETURN(out.port, ParseWithin(flag, port, 1, 65535));
  }
  return out;
}

bool IsHere(const Endpoint& endpoint) {
  const Addresses addresses(Endpoint{endpoint.host, 0});
  for (const addrinfo* a = addresses.first; a != nullptr; a = a->ai_next) {
    const os::UniqueFd fd(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd && ::bind(fd.get(), a->ai_addr, a->ai_addrlen) == 0) return true;
  }
  return false;
}

bool PortIsTaken(const Endpoint& endpoint) {
  const Addresses addresses({IsNumericV6(endpoint.host) ? "::" : "0.0.0.0", endpoint.port});
  if (addresses.first == nullptr) return false;
  const os::UniqueFd fd(::socket(addresses.first->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  return ::bind(fd.get(), addresses.first->ai_addr, addresses.first->ai_addrlen) != 0 &&
         errno == EADDRINUSE;
}

std::string WhyNobodyAnswers(const Endpoint& endpoint) {
  const Addresses addresses(endpoint);
  if (addresses.error != 0) {
    return fmt::format("the name {} is not known: {}", endpoint.host,
                       ::gai_strerror(addresses.error));
  }
  std::string why = "no address";
  for (const addrinfo* a = addresses.first; a != nullptr; a = a->ai_next) {
    const os::UniqueFd fd(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval patience = {.tv_sec = 3, .tv_usec = 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    if (::connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0) return "";
    why = errno == EINPROGRESS ? "no answer" : std::strerror(errno);
  }
  return why;
}

}  // namespace meshrun::client
