#include "jobs/verify/topology.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>

#include "core/version.h"
#include "jobs/runtime/words.h"
#include "parallel/manager/distributed_manager.h"
#include "torch/headeronly/version.h"

namespace meshrun::verify {
namespace {

using nlohmann::ordered_json;

// "2.28.9"; empty: this program has no NCCL.
std::string nccl_version() {
  const auto get = reinterpret_cast<int (*)(int*)>(::dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  int number = 0;
  if (get == nullptr || get(&number) != 0) return "";
  return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." +
         std::to_string(number % 100);
}

std::string in_words(const HostFacts& facts) {
  std::string text = std::to_string(facts.cores) + (facts.cores == 1 ? " core, " : " cores, ") +
                     jobs::format("%.1f GiB", static_cast<double>(facts.memory_bytes) / (1 << 30));
  for (const Interface& interface : facts.interfaces) {
    text += ", " + interface.name;
    if (interface.mbit_per_second) {
      text += jobs::format(" %.3g Gbit/s", static_cast<double>(*interface.mbit_per_second) * 1e-3);
    }
  }
  std::map<std::string, int> models;
  for (const Gpu& gpu : facts.gpus) ++models[gpu.model];
  for (const auto& [model, count] : models) text += ", " + std::to_string(count) + " x " + model;
  return models.empty() ? text + ", no GPU" : text;
}

// The first host whose value is another one than host 0's.
Verdict judge_equal(const std::vector<HostFacts>& hosts, std::string HostFacts::*value) {
  const std::string& first = hosts.front().*value;
  for (size_t host = 1; host < hosts.size(); ++host) {
    if (hosts[host].*value == first) continue;
    return {Result::kWarning, "host 0 has '" + first + "', and host " + std::to_string(host) +
                                  " has '" + hosts[host].*value + "'"};
  }
  return {Result::kOk, first.empty() ? "none" : first};
}

}  // namespace

void describe_topology(Stage& stage, Report& report, Hosts& hosts) {
  DistributedManager& manager = DistributedManager::get();
  const bool speaks =
      hosts.first_rank[static_cast<size_t>(hosts.of_rank[static_cast<size_t>(manager.rank())])] ==
      manager.rank();
  ordered_json own = {{"names", names_here()}};
  if (speaks) own["host"] = to_json(find_host_facts());
  const std::vector<std::string> said = stage.exchange().gather(own.dump());
  if (said.empty()) return;

  hosts.facts.resize(static_cast<size_t>(hosts.count()));
  std::vector<ordered_json> entries(hosts.facts.size());
  for (size_t rank = 0; rank < said.size(); ++rank) {
    const auto one = ordered_json::parse(said[rank]);
    for (const auto& name : one.at("names")) report.replace(name, "<name>");
    if (!one.contains("host")) continue;
    const int host = hosts.of_rank[rank];
    const auto ranks = std::count(hosts.of_rank.begin(), hosts.of_rank.end(), host);
    ordered_json& entry = entries[static_cast<size_t>(host)];
    entry = {{"host", host}, {"ranks", ranks}};
    entry.update(one.at("host"));
    hosts.facts[static_cast<size_t>(host)] = host_facts_of(one.at("host"));
  }
  for (size_t host = 0; host < entries.size(); ++host) {
    stage.judge("host " + std::to_string(host),
                {Result::kOk,
                 jobs::ranks(entries[host].at("ranks")) + " on " + in_words(hosts.facts[host])});
  }
  const std::string nccl = nccl_version();
  report.set("topology", {{"ranks", manager.world_size()},
                          {"device", manager.cuda() ? "cuda" : "cpu"},
                          {"backend", manager.backend()},
                          {"launcher", manager.initialization_method()},
                          {"hosts", entries}});
  report.set("versions", {{"meshrun", kVersion},
                          {"libtorch", TORCH_VERSION},
                          {"nccl", nccl.empty() ? ordered_json() : ordered_json(nccl)}});
  stage.judge("world", {Result::kOk,
                        jobs::ranks(manager.world_size()) + " on " + std::to_string(hosts.count()) +
                            (hosts.count() == 1 ? " host, " : " hosts, ") + manager.backend() +
                            ", started by " + manager.initialization_method()});
  stage.judge("meshrun, LibTorch, NCCL",
              {Result::kOk, std::string(kVersion) + ", " + TORCH_VERSION + ", " +
                                (nccl.empty() ? "none" : nccl)});
  stage.judge("kernel", judge_equal(hosts.facts, &HostFacts::kernel));
  stage.judge("glibc", judge_equal(hosts.facts, &HostFacts::glibc));
  stage.judge("NVIDIA driver", judge_equal(hosts.facts, &HostFacts::driver));
}

}  // namespace meshrun::verify
