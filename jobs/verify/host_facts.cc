#include "jobs/verify/host_facts.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <pwd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

#include "core/os/cores.h"
#include "core/slurm.h"
#include "parallel/base/network_interfaces.h"

namespace meshrun::verify {
namespace {

using nlohmann::ordered_json;

std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

uint64_t memory_in(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  uint64_t kibibytes = 0;
  while (file >> word) {
    if (word == "MemTotal:" && file >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

// "search cluster.site.edu site.edu": the domains of hosts whose names are short.
std::vector<std::string> search_domains(const std::string& path) {
  std::vector<std::string> domains;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    if (!(words >> word) || (word != "search" && word != "domain")) continue;
    while (words >> word) domains.push_back(word);
  }
  return domains;
}

// "eth0", or a port of an InfiniBand adapter: "mlx5_0:1".
std::optional<int64_t> speed_of(const std::string& classes, const std::string& name) {
  const size_t colon = name.find(':');
  if (colon == std::string::npos) {
    const auto speed = number_in(classes + "/net/" + name + "/speed");
    // -1: the kernel does not know it.
    return speed && *speed > 0 ? speed : std::nullopt;
  }
  const auto gbit = number_in(classes + "/infiniband/" + name.substr(0, colon) + "/ports/" +
                              name.substr(colon + 1) + "/rate");
  return gbit ? std::optional(*gbit * 1000) : std::nullopt;
}

template <typename Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library, name));
}

// What NVML says, without linking it.
void find_gpus(HostFacts& facts) {
  struct Memory {
    unsigned long long total, free, used;
  };
  using Device = struct nvmlDevice_st*;
  const std::unique_ptr<void, int (*)(void*)> library(
      ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL),
      [](void* l) { return l != nullptr ? ::dlclose(l) : 0; });
  if (library == nullptr) return;
  void* const l = library.get();
  const auto init = symbol<int (*)()>(l, "nvmlInit_v2");
  const auto shutdown = symbol<int (*)()>(l, "nvmlShutdown");
  const auto version = symbol<int (*)(char*, unsigned)>(l, "nvmlSystemGetDriverVersion");
  const auto count = symbol<int (*)(unsigned*)>(l, "nvmlDeviceGetCount_v2");
  const auto handle = symbol<int (*)(unsigned, Device*)>(l, "nvmlDeviceGetHandleByIndex_v2");
  const auto model = symbol<int (*)(Device, char*, unsigned)>(l, "nvmlDeviceGetName");
  const auto memory = symbol<int (*)(Device, Memory*)>(l, "nvmlDeviceGetMemoryInfo");
  if (!init || !shutdown || !version || !count || !handle || !model || !memory) return;
  if (init() != 0) return;
  char text[96] = {};
  if (version(text, sizeof text) == 0) facts.driver = text;
  unsigned devices = 0;
  if (count(&devices) != 0) devices = 0;
  for (unsigned i = 0; i < devices; ++i) {
    Device device = nullptr;
    Memory bytes = {};
    if (handle(i, &device) != 0 || model(device, text, sizeof text) != 0) continue;
    facts.gpus.push_back({text, memory(device, &bytes) == 0 ? bytes.total : 0});
  }
  shutdown();
}

}  // namespace

HostFacts find_host_facts(const std::string& root) {
  HostFacts facts;
  facts.cores = os::WholeCores();
  facts.memory_bytes = memory_in(root + "proc/meminfo");
  const std::string classes = root + "sys/class";
  for (const NetworkInterface& interface : network_interfaces(classes)) {
    if (interface.is_loopback || interface.is_internal) continue;
    facts.interfaces.push_back({interface.name, speed_of(classes, interface.name)});
  }
  find_gpus(facts);
  struct utsname system;
  if (::uname(&system) == 0) facts.kernel = system.release;
  facts.glibc = ::gnu_get_libc_version();
  return facts;
}

std::optional<double> fastest_interface(const HostFacts& facts) {
  std::optional<double> fastest;
  for (const Interface& interface : facts.interfaces) {
    if (!interface.mbit_per_second) continue;
    fastest =
        std::max(fastest.value_or(0), static_cast<double>(*interface.mbit_per_second) * 1e6 / 8);
  }
  return fastest;
}

ordered_json to_json(const HostFacts& facts) {
  ordered_json interfaces = ordered_json::array();
  for (const Interface& interface : facts.interfaces) {
    interfaces.push_back(
        {{"name", interface.name},
         {"mbit_per_second",
          interface.mbit_per_second ? ordered_json(*interface.mbit_per_second) : ordered_json()}});
  }
  ordered_json gpus = ordered_json::array();
  for (const Gpu& gpu : facts.gpus) {
    gpus.push_back({{"model", gpu.model}, {"memory_bytes", gpu.memory_bytes}});
  }
  return {{"cores", facts.cores},
          {"memory_bytes", facts.memory_bytes},
          {"interfaces", interfaces},
          {"gpus", gpus},
          {"driver", facts.driver.empty() ? ordered_json() : ordered_json(facts.driver)},
          {"kernel", facts.kernel},
          {"glibc", facts.glibc}};
}

HostFacts host_facts_of(const ordered_json& json) {
  HostFacts facts;
  facts.cores = json.at("cores");
  facts.memory_bytes = json.at("memory_bytes");
  for (const auto& each : json.at("interfaces")) {
    const auto& speed = each.at("mbit_per_second");
    facts.interfaces.push_back(
        {each.at("name"), speed.is_null() ? std::nullopt : std::optional(speed.get<int64_t>())});
  }
  for (const auto& each : json.at("gpus")) {
    facts.gpus.push_back({each.at("model"), each.at("memory_bytes")});
  }
  if (!json.at("driver").is_null()) facts.driver = json.at("driver");
  facts.kernel = json.at("kernel");
  facts.glibc = json.at("glibc");
  return facts;
}

std::vector<std::string> forms_of_host(const std::string& host) {
  unsigned char address[sizeof(in6_addr)];
  if (host.empty() || ::inet_pton(AF_INET, host.c_str(), address) == 1 ||
      ::inet_pton(AF_INET6, host.c_str(), address) == 1) {
    return {};
  }
  std::vector<std::string> forms = {host};
  const size_t first = host.find('.');
  if (first == std::string::npos) return forms;
  forms.push_back(host.substr(0, first));
  for (size_t dot = first; host.find('.', dot + 1) != std::string::npos;
       dot = host.find('.', dot + 1)) {
    forms.push_back(host.substr(dot + 1));
  }
  return forms;
}

std::vector<std::string> names_here(const std::string& root) {
  std::vector<std::string> names;
  const auto add_host = [&](const std::string& host) {
    const auto forms = forms_of_host(host);
    names.insert(names.end(), forms.begin(), forms.end());
  };
  struct utsname system;
  if (::uname(&system) == 0) add_host(system.nodename);
  for (const char* variable :
       {"MASTER_ADDR", "SLURMD_NODENAME", "SLURM_SUBMIT_HOST", "HOSTNAME", "MESHRUN_NODE_NAME"}) {
    if (const char* const value = std::getenv(variable); value != nullptr) add_host(value);
  }
  for (const char* variable : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    const char* const value = std::getenv(variable);
    if (value == nullptr) continue;
    names.push_back(value);
    if (const auto host = FirstHost(value); host.ok()) add_host(*host);
  }
  for (const std::string& domain : search_domains(root + "etc/resolv.conf")) {
    // A host's name without its first label.
    const auto forms = forms_of_host("." + domain);
    if (forms.size() > 2) names.insert(names.end(), forms.begin() + 2, forms.end());
  }
  if (const passwd* const user = ::getpwuid(::geteuid()); user != nullptr) {
    names.push_back(user->pw_dir);
    names.push_back(user->pw_name);
  }
  for (const char* variable : {"USER", "LOGNAME", "HOME"}) {
    if (const char* const value = std::getenv(variable); value != nullptr) names.push_back(value);
  }
  // Words and figures that say nothing of a site.
  std::erase_if(names, [](const std::string& name) {
    return name.size() < 2 || name.starts_with("localhost") || name == "root" || name == "/root" ||
           name.find_first_not_of("0123456789") == std::string::npos;
  });
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace meshrun::verify
