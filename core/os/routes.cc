#include "core/os/routes.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <sstream>
#include <utility>

#include "core/os/fd.h"
#include "core/os/internal_interfaces.h"

namespace meshrun::os {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Null: not a numeric address.
AddressList Numeric(const std::string& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  // Any port will do.
  if (::getaddrinfo(address.c_str(), "9", &hints, &found) != 0) found = nullptr;
  return AddressList(found, &::freeaddrinfo);
}

std::string Text(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST];
  return ::getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0 ? text
                                                                                             : "";
}

// Addresses of running interfaces, IPv4 first.
std::vector<InterfaceAddress> AllAddresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(first, &::freeifaddrs);
  std::vector<InterfaceAddress> addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if ((entry->ifa_flags & IFF_RUNNING) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;
      std::string text =
          Text(entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
      if (!text.empty()) addresses.push_back({entry->ifa_name, std::move(text)});
    }
  }
  return addresses;
}

}  // namespace

std::vector<std::string> InterfaceAddresses() { return AddressesThatLeadOut(AllAddresses()); }

std::string InterfaceOf(const std::string& address) {
  for (const InterfaceAddress& each : AllAddresses()) {
    if (each.address == address) return each.interface;
  }
  return "";
}

bool LeadsToLoopback(const std::string& name, const std::string& hosts) {
  std::istringstream lines(hosts);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string address;
    words >> address;
    for (std::string word; words >> word;) {
      if (word == name) return address.starts_with("127.") || address == "::1";
    }
  }
  return false;
}

std::vector<std::string> AddressesThatLeadOut(const std::vector<InterfaceAddress>& all,
                                              const std::string& classes,
                                              const std::string& routes) {
  std::vector<std::string> out, internal;
  for (const InterfaceAddress& each : all) {
    (LeadsNowhere(each.interface, classes, routes) ? internal : out).push_back(each.address);
  }
  std::vector<std::string>& addresses = out.empty() ? internal : out;
  if (addresses.size() > kMostAddresses) addresses.resize(kMostAddresses);
  return addresses;
}

std::string SourceTowards(const std::string& address) {
  const AddressList target = Numeric(address);
  if (target == nullptr) return "";
  // Connecting a datagram socket only chooses the route.
  const UniqueFd fd(::socket(target->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  if (!fd || ::connect(fd.get(), target->ai_addr, target->ai_addrlen) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    return "";
  }
  return Text(reinterpret_cast<const sockaddr*>(&own), length);
}

std::string FirstWithRoute(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    if (Numeric(address) == nullptr || !SourceTowards(address).empty()) return address;
  }
  return addresses.empty() ? "" : addresses.front();
}

}  // namespace meshrun::os
