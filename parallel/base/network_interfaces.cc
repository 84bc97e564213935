#include "parallel/base/network_interfaces.h"

#include <fnmatch.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace meshrun {
namespace {

namespace fs = std::filesystem;

// Docker's names for the bridges that it makes: twelve digits of a number. br-ex and br-bond0 are a
// host's own.
constexpr const char* kDockerBridge =
    "br-[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]"
    "[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]";
// What programs that run containers and virtual machines call the networks that they make.
constexpr const char* kInternalNames[] = {
    "docker*", kDockerBridge, "veth*",  "virbr*",  "vnet*",    "cni*",   "flannel*", "cali*",
    "cilium*", "lxc*",        "lxdbr*", "podman*", "nerdctl*", "kube-*", "weave*",   "dummy*"};

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::ranges::sort(names);
  return names;
}

// Hardware, or what stands for it: a bond, a VLAN.
bool is_way_out(const fs::path& interface) {
  std::error_code error;
  if (fs::exists(interface / "device", error)) return true;
  return std::ranges::any_of(names_in(interface),
                             [](const std::string& name) { return name.starts_with("lower_"); });
}

bool has_default_route(const std::string& interface, const fs::path& routes) {
  // "Iface Destination Gateway Flags RefCnt Use Metric Mask ...", in hexadecimal digits.
  std::ifstream v4(routes / "route");
  for (std::string line; std::getline(v4, line);) {
    std::istringstream words(line);
    std::string name, destination;
    if (words >> name >> destination && name == interface && destination == "00000000") return true;
  }
  // "Destination Length Source Length Gateway Metric RefCnt Use Flags Iface". An unreachable default
  // route names the loopback interface.
  std::ifstream v6(routes / "ipv6_route");
  for (std::string line; std::getline(v6, line);) {
    std::istringstream words(line);
    std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
    if (fields.size() == 10 && fields[1] == "00" && fields[9] == interface) return true;
  }
  return false;
}

std::vector<std::string> running_interfaces(unsigned flag) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(first, &freeifaddrs);
  std::vector<std::string> names;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_RUNNING) == 0) continue;
    const auto family = entry->ifa_addr->sa_family;
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
    const bool is_usable =
        family == AF_INET || (family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr));
    if (!is_usable) continue;
    if ((entry->ifa_flags & IFF_LOOPBACK) != flag) continue;
    if (std::ranges::find(names, entry->ifa_name) == names.end()) {
      names.emplace_back(entry->ifa_name);
    }
  }
  return names;
}

bool fits(const std::string& name, const std::string& pattern) {
  // "mlx5_0" is all ports of the adapter.
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0 ||
         (name.starts_with(pattern) && name.substr(pattern.size()).starts_with(":"));
}

}  // namespace

bool leads_nowhere(const std::string& name, const std::string& classes, const std::string& routes) {
  if (has_default_route(name, routes)) return false;
  const fs::path net = fs::path(classes) / "net";
  const bool has_way_out =
      std::ranges::any_of(names_in(net / name / "brif"),
                          [&](const std::string& port) { return is_way_out(net / port); });
  if (has_way_out) return false;
  std::error_code error;
  return fs::exists(net / name / "bridge", error) ||
         std::ranges::any_of(kInternalNames, [&](const char* pattern) {
           return fnmatch(pattern, name.c_str(), 0) == 0;
         });
}

std::vector<NetworkInterface> network_interfaces(const std::string& classes) {
  std::vector<NetworkInterface> all;
  const fs::path adapters = fs::path(classes) / "infiniband";
  for (const std::string& adapter : names_in(adapters)) {
    for (const std::string& port : names_in(adapters / adapter / "ports")) {
      all.push_back({.name = fmt::format("{}:{}", adapter, port)});
    }
  }
  for (const std::string& name : running_interfaces(0)) {
    all.push_back({.name = name, .is_internal = leads_nowhere(name, classes)});
  }
  for (const std::string& name : running_interfaces(IFF_LOOPBACK)) {
    all.push_back({.name = name, .is_loopback = true});
  }
  return all;
}

absl::StatusOr<ChosenInterfaces> choose_interfaces(const std::vector<NetworkInterface>& all,
                                                   std::string_view wanted) {
  std::vector<std::string> names;
  for (const NetworkInterface& interface : all) names.push_back(interface.name);
  const auto wrong = [&](const std::string& what) {
    return absl::InvalidArgumentError(fmt::format("MESHRUN_NET_DEVICES={}: {}; this host has {}",
                                                  wanted, what, fmt::join(names, ", ")));
  };

  ChosenInterfaces chosen;
  if (wanted.empty()) {
    const auto keep = [&](auto is_one) {
      for (const NetworkInterface& interface : all) {
        if (is_one(interface)) chosen.names.push_back(interface.name);
      }
    };
    keep([](const NetworkInterface& i) { return !i.is_loopback && !i.is_internal; });
    if (chosen.names.empty()) {
      keep([](const NetworkInterface& i) { return !i.is_loopback; });
    } else {
      for (const NetworkInterface& i : all) {
        if (i.is_internal) chosen.left_out.push_back(i.name);
      }
    }
    return chosen;
  }

  const bool leaves_out = wanted.front() == '^';
  chosen.are_named = !leaves_out;
  std::vector<std::string> patterns;
  std::istringstream rest{std::string(wanted.substr(leaves_out ? 1 : 0))};
  for (std::string pattern; std::getline(rest, pattern, ',');) {
    if (pattern.empty()) continue;
    // One that is not there is not in the way, either.
    const bool is_there =
        std::ranges::any_of(names, [&](const std::string& name) { return fits(name, pattern); });
    if (!is_there && !leaves_out) return wrong(fmt::format("no interface \"{}\" runs", pattern));
    patterns.push_back(std::move(pattern));
  }
  if (leaves_out) {
    for (const NetworkInterface& interface : all) {
      const bool is_named = std::ranges::any_of(
          patterns, [&](const std::string& pattern) { return fits(interface.name, pattern); });
      if (!is_named && !interface.is_loopback) chosen.names.push_back(interface.name);
    }
  } else {
    for (const std::string& pattern : patterns) {
      for (const std::string& name : names) {
        const bool is_new = std::ranges::find(chosen.names, name) == chosen.names.end();
        if (is_new && fits(name, pattern)) chosen.names.push_back(name);
      }
    }
  }
  if (chosen.names.empty()) return wrong("no interface is left");
  return chosen;
}

}  // namespace meshrun
