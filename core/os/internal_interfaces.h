// Network interfaces that end on this host: a bridge of containers or virtual machines (docker0,
// cni0, virbr0) runs and has the same address on every host. So a message to another host's address
// comes back to its sender. Threads: any. No errors: what cannot be read is not there.
#pragma once

#include <string>
#include <vector>

namespace meshrun::os {

// Whether an interface joins containers and virtual machines of this host: a bridge, or one with a
// name that their programs give (docker0, br-0123456789ab, virbr0, cni0, flannel.1, ...). A bridge
// with a device or a bond among its ports leads out whatever its name, and so does the interface of
// the default route. `routes`: where Linux lists the routes of IPv4 and IPv6.
bool LeadsNowhere(const std::string& name, const std::string& classes = "/sys/class",
                  const std::string& routes = "/proc/net");

// Sorted; none: the directory cannot be read.
std::vector<std::string> NamesIn(const std::string& directory);

}  // namespace meshrun::os
