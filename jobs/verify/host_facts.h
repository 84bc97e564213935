// What a host is, as far as a stranger may know it: no names, no addresses.
//
// No LibTorch. Threads: any. No errors: what cannot be read is left out.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace meshrun::verify {

struct Interface {
  std::string name;
  // Mbit/s, as the kernel says it; absent: it does not.
  std::optional<int64_t> mbit_per_second;
};

struct Gpu {
  std::string model;
  uint64_t memory_bytes = 0;
};

struct HostFacts {
  uint32_t cores = 0;
  uint64_t memory_bytes = 0;
  std::vector<Interface> interfaces;
  std::vector<Gpu> gpus;
  // Version of the NVIDIA driver; empty: there is none.
  std::string driver;
  std::string kernel;
  std::string glibc;
};

// `root`: where sys/class and proc are.
HostFacts find_host_facts(const std::string& root = "/");
// The fastest interface, in bytes per second.
std::optional<double> fastest_interface(const HostFacts& facts);

nlohmann::ordered_json to_json(const HostFacts& facts);
HostFacts host_facts_of(const nlohmann::ordered_json& json);

// Names that must not be in the file: of this host and its domain, of hosts that the launcher
// names, of the user and of the home directory. `root`: where etc is.
std::vector<std::string> names_here(const std::string& root = "/");
// A host's name, its first label, and its domains of at least two labels: "gpu7.cl.site.edu" gives
// "gpu7", "cl.site.edu" and "site.edu", too. Empty: an address, which is no name.
std::vector<std::string> forms_of_host(const std::string& host);

}  // namespace meshrun::verify
