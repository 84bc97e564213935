#include "parallel/base/network_interfaces.h"

#include <fnmatch.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <sstream>
#include <utility>

#include "core/os/internal_interfaces.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace meshrun {
namespace {

namespace fs = std::filesystem;

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

std::vector<NetworkInterface> network_interfaces(const std::string& classes) {
  std::vector<NetworkInterface> all;
  const fs::path adapters = fs::path(classes) / "infiniband";
  for (const std::string& adapter : os::NamesIn(adapters)) {
    for (const std::string& port : os::NamesIn(adapters / adapter / "ports")) {
      all.push_back({.name = fmt::format("{}:{}", adapter, port)});
    }
  }
  for (const std::string& name : running_interfaces(0)) {
    all.push_back({.name = name, .is_internal = os::LeadsNowhere(name, classes)});
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
