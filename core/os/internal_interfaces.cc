#include "core/os/internal_interfaces.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

namespace meshrun::os {
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

// Hardware, or what stands for it: a bond, a VLAN.
bool IsWayOut(const fs::path& interface) {
  std::error_code error;
  if (fs::exists(interface / "device", error)) return true;
  return std::ranges::any_of(NamesIn(interface),
                             [](const std::string& name) { return name.starts_with("lower_"); });
}

bool HasDefaultRoute(const std::string& interface, const fs::path& routes) {
  // "Iface Destination Gateway Flags RefCnt Use Metric Mask ...", in hexadecimal digits.
  std::ifstream v4(routes / "route");
  for (std::string line; std::getline(v4, line);) {
    std::istringstream words(line);
    std::string name, destination;
    if (words >> name >> destination && name == interface && destination == "00000000") return true;
  }
  // "Destination Length Source Length Gateway Metric RefCnt Use Flags Iface". An unreachable
  // default route names the loopback interface.
  std::ifstream v6(routes / "ipv6_route");
  for (std::string line; std::getline(v6, line);) {
    std::istringstream words(line);
    std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
    if (fields.size() == 10 && fields[1] == "00" && fields[9] == interface) return true;
  }
  return false;
}

}  // namespace

bool LeadsNowhere(const std::string& name, const std::string& classes, const std::string& routes) {
  const fs::path net = fs::path(classes) / "net";
  std::error_code error;
  const bool may_be_internal = fs::exists(net / name / "bridge", error) ||
                               std::ranges::any_of(kInternalNames, [&](const char* pattern) {
                                 return fnmatch(pattern, name.c_str(), 0) == 0;
                               });
  // The routes are read for few interfaces.
  return may_be_internal && !HasDefaultRoute(name, routes) &&
         std::ranges::none_of(NamesIn(net / name / "brif"),
                              [&](const std::string& port) { return IsWayOut(net / port); });
}

std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace meshrun::os
