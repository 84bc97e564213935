#include "worker/host_address.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "core/hash.h"
#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/os/host_name.h"
#include "core/os/routes.h"
#include "core/rpc/security.h"
#include "core/status.h"
#include "core/utf8.h"

namespace meshrun::worker {
namespace {

// Empty: not an address of the internet.
std::string NumericText(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST];
  return ::getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0 ? text
                                                                                           : "";
}

}  // namespace

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
    if (!fd || ::connect(fd.get(), a->ai_addr, a->ai_addrlen) != 0 ||
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
      continue;
    }
    std::string text = NumericText(reinterpret_cast<sockaddr*>(&own), size);
    if (!text.empty()) return text;
  }
  return absl::NotFoundError(
      fmt::format("this host has no route to the coordinator's {}: pass --address", host));
}

absl::StatusOr<std::vector<std::string>> OwnAddresses(const std::string& coordinator) {
  MESHRUN_ASSIGN_OR_RETURN(const std::string facing, AddressFacing(coordinator));
  std::vector<std::string> addresses = {facing};
  if (rpc::IsLocalAddress(coordinator)) return addresses;
  for (std::string& address : os::InterfaceAddresses()) {
    if (address != facing) addresses.push_back(std::move(address));
  }
  if (addresses.size() > os::kMostAddresses) addresses.resize(os::kMostAddresses);
  return addresses;
}

absl::StatusOr<std::vector<std::string>> ParseAddresses(const std::vector<std::string>& values) {
  std::vector<std::string> addresses;
  for (const std::string& value : values) {
    for (size_t begin = 0; begin <= value.size();) {
      const size_t end = std::min(value.find(',', begin), value.size());
      std::string address = value.substr(begin, end - begin);
      begin = end + 1;
      if (address.empty() || address.find_first_of(" \t\n\r") != std::string::npos ||
          !IsUtf8(address)) {
        return absl::InvalidArgumentError(
            fmt::format("'{}' is not a list of addresses: write 10.0.0.7 or 10.0.0.7,192.168.1.7",
                        EscapeBytes(value)));
      }
      if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) {
        addresses.push_back(std::move(address));
      }
    }
  }
  if (addresses.size() > os::kMostAddresses) {
    return absl::InvalidArgumentError(
        fmt::format("{} addresses: a host tells at most {}", addresses.size(), os::kMostAddresses));
  }
  return addresses;
}

std::string MachineId(const std::string& path) {
  constexpr size_t kDigits = 32;
  const auto id = os::ReadRegularFile(path, 4096);
  if (!id.ok() || id->size() < kDigits) return "";
  return HexEncode(Sha256("meshrun " + id->substr(0, kDigits))).substr(0, kDigits);
}

std::vector<std::string> NumericAddresses(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, ::freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* a = all.get(); a != nullptr; a = a->ai_next) {
    std::string text = NumericText(a->ai_addr, a->ai_addrlen);
    if (!text.empty()) addresses.push_back(std::move(text));
  }
  return addresses;
}

std::string FirstInterface(const std::vector<std::string>& hosts, const AddressLookup& addresses_of,
                           const InterfaceLookup& interface_of) {
  for (const std::string& host : hosts) {
    for (const std::string& address : addresses_of(host)) {
      std::string interface = interface_of(address);
      if (!interface.empty()) return interface;
    }
  }
  return "";
}

std::string GlooInterface(const std::vector<std::string>& addresses,
                          const std::string& coordinator) {
  if (addresses.empty() || rpc::IsLocalAddress(addresses.front())) return "";
  const std::string hosts = os::ReadFile("/etc/hosts").value_or("");
  if (!os::LeadsToLoopback(os::HostName(), hosts)) return "";
  std::vector<std::string> candidates = {addresses.front()};
  // The first one may be this host's own name, as --master-addr is on node 0.
  if (auto facing = AddressFacing(coordinator); facing.ok()) {
    candidates.push_back(*std::move(facing));
  }
  for (std::string& address : os::InterfaceAddresses()) candidates.push_back(std::move(address));
  return FirstInterface(candidates, NumericAddresses, os::InterfaceOf);
}

}  // namespace meshrun::worker
