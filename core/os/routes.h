// The addresses of this host, and whether the system knows a way to others. Sends nothing, asks no
// name server, does not wait. Threads: any.
#pragma once

#include <string>
#include <vector>

namespace meshrun::os {

// Addresses of this host's running interfaces, IPv4 first, without loopback and link-local
// addresses; at most kMostAddresses. Addresses of interfaces that end on this host
// (internal_interfaces.h) are left out if there are others.
inline constexpr size_t kMostAddresses = 16;
std::vector<std::string> InterfaceAddresses();

struct InterfaceAddress {
  std::string interface, address;
};
// The part of InterfaceAddresses that reads no interface. `classes`, `routes`: as in LeadsNowhere.
std::vector<std::string> AddressesThatLeadOut(const std::vector<InterfaceAddress>& all,
                                              const std::string& classes = "/sys/class",
                                              const std::string& routes = "/proc/net");

// The running interface that has this numeric address; empty: none has.
std::string InterfaceOf(const std::string& address);

// Does a file as /etc/hosts give the name an address of the loopback, as Debian and Ubuntu do for a
// host's own name? Where several lines have the name, the first one counts.
bool LeadsToLoopback(const std::string& name, const std::string& hosts);

// The address of this host on the way to the numeric `address`; empty: the system knows no way.
std::string SourceTowards(const std::string& address);

// The first to which this host has a route; names pass, since they are not looked up here. Where
// none has one, the first. Empty: none is given.
std::string FirstWithRoute(const std::vector<std::string>& addresses);

}  // namespace meshrun::os
