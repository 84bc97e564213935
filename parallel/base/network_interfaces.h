// Which network interfaces carry messages between hosts: those that MESHRUN_NET_DEVICES names, or
// all that run and lead out of this host.
//
// A bridge of containers or virtual machines (docker0, cni0, virbr0) runs and has the same address
// on every host. So a message to the peer's address comes back to the sender. UCX treats such a
// bridge like any other network.
//
// Threads: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace meshrun {

// One that runs and has an address beyond its link, or a port of an InfiniBand adapter
// ("mlx5_0:1").
struct NetworkInterface {
  std::string name;
  bool is_loopback = false;
  // Ends on this host: by its name or by its kind (core/os/internal_interfaces.h).
  bool is_internal = false;
};

// `classes`: where Linux lists devices by class. The kernel is asked which interfaces run.
std::vector<NetworkInterface> network_interfaces(const std::string& classes = "/sys/class");

struct ChosenInterfaces {
  std::vector<std::string> names;
  std::vector<std::string> left_out;  // as leading nowhere
  bool are_named = false;             // by the user, not by what to leave out
};

// `wanted` is MESHRUN_NET_DEVICES: names or patterns ("eth0,ib*"), or with a leading "^" those not
// to take. Empty: all but loopback and internal ones; these, too, if there are no others. What is
// named comes in the order of the names, by which hosts agree on a first one; all else in the order
// of `all`. Errors: INVALID_ARGUMENT for a name that fits no interface, and where none is left; it
// lists what there is.
absl::StatusOr<ChosenInterfaces> choose_interfaces(const std::vector<NetworkInterface>& all,
                                                   std::string_view wanted);

}  // namespace meshrun
