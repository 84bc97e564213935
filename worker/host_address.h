// Where others reach this host.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace meshrun::worker {

// The address of this host on the way to `coordinator` ("host:port"): what its peers on that
// network can use too. 127.0.0.1 where the coordinator is on this host (loopback, Unix socket).
// Sends nothing. Errors: NOT_FOUND (the name does not resolve, or there is no route to it; pass
// --address).
absl::StatusOr<std::string> AddressFacing(const std::string& coordinator);

// Where ranks of other hosts may reach this one, the likeliest first: AddressFacing, then the other
// interfaces'. Where the coordinator is on this host: 127.0.0.1 alone.
absl::StatusOr<std::vector<std::string>> OwnAddresses(const std::string& coordinator);

// Addresses in the values of --address, which may be lists with commas: each once, in their order.
// INVALID_ARGUMENT: one is empty, has a blank, or is not UTF-8; or there are more than
// os::kMostAddresses.
absl::StatusOr<std::vector<std::string>> ParseAddresses(const std::vector<std::string>& values);

// Id of this machine, the same for all its daemons; empty if the machine has none, as in
// containers. It is a hash of the id in `path`: systemd asks that the id itself stays on its host.
std::string MachineId(const std::string& path = "/etc/machine-id");

// Addresses of a host's name, or of a numeric address; empty: it is not known. May wait for a name
// server.
std::vector<std::string> NumericAddresses(const std::string& host);

// The first interface of one of these hosts' addresses, where hosts are names or numeric addresses;
// empty: none has one. NumericAddresses and os::InterfaceOf are the host's own functions.
using AddressLookup = std::function<std::vector<std::string>(const std::string& host)>;
using InterfaceLookup = std::function<std::string(const std::string& address)>;
std::string FirstInterface(const std::vector<std::string>& hosts, const AddressLookup& addresses_of,
                           const InterfaceLookup& interface_of);

// For GLOO_SOCKET_IFNAME, where /etc/hosts gives the host's own name an address of the loopback;
// else empty. The interface of the first of `addresses`; if that is a name which leads to no
// interface from here, the one towards the coordinator, else the first. Empty too where the first
// address is the loopback's, since its peers are on this host. May wait for a name server.
std::string GlooInterface(const std::vector<std::string>& addresses,
                          const std::string& coordinator);

}  // namespace meshrun::worker
