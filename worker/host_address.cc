#include "worker/host_address.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "core/hash.h"
#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/rpc/security.h"

namespace meshrun::worker {

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

absl::StatusOr<std::string> AddressFacing(const std::string& coordinator) {
  if (rpc::IsLocalAddress(coordinator)) return "127.0.0.1";
  std::string authority = coordinator;
  for (const std::string prefix : {"dns:///", "ipv4:", "ipv6:"}) {
    if (authority.starts_with(prefix)) authority.erase(0, prefix.size());
  }
  const size_t colon = authority.rfind(':');
  std::string host = authority.substr(0, colon);
  const std::string port = colon == std::string::npos ? "0" : authority.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);

  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return absl::NotFoundError(
        fmt::format("the coordinator's host {} is not known: {}", host, ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    // Connecting a datagram socket only chooses the route.
    const os::UniqueFd fd(::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own = {};
    socklen_t size = sizeof(own);
    char text[NI_MAXHOST];
    if (fd && ::connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0 &&
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof(text), nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      return std::string(text);
    }
  }
  return absl::NotFoundError(
      fmt::format("this host has no route to the coordinator's {}: pass --address", host));
}

std::string MachineId(const std::string& path) {
  constexpr size_t kDigits = 32;
  const auto id = os::ReadRegularFile(path, 4096);
  if (!id.ok() || id->size() < kDigits) return "";
  return HexEncode(Sha256("meshrun " + id->substr(0, kDigits))).substr(0, kDigits);
}

}  // namespace meshrun::worker
