#include "worker/launch/rank_environment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/env_entries.h"
#include "core/job_spec.h"
#include "core/mesh_messages.h"

namespace meshrun::worker {
namespace {

// Variables that only concern the daemon: paths of secrets, and systemd's.
constexpr std::string_view kDaemonsOwn[] = {"MESHRUN_TLS_CERT", "MESHRUN_TLS_KEY", "MESHRUN_TLS_CA",
                                            "NOTIFY_SOCKET",    "LISTEN_FDS",      "LISTEN_PID",
                                            "LISTEN_FDNAMES",   "WATCHDOG_USEC",   "WATCHDOG_PID"};

}  // namespace

Environment InheritedEnvironment(const char* const* environ) {
  Environment out;
  for (; *environ != nullptr; ++environ) {
    const std::string_view entry = *environ;
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    out[std::string(entry.substr(0, equals))] = entry.substr(equals + 1);
  }
  for (const std::string_view name : kDaemonsOwn) out.erase(std::string(name));
  return out;
}

Environment WithoutUser(Environment environment) {
  std::erase_if(environment, [](const auto& entry) {
    const std::string_view name = entry.first;
    return name == "HOME" || name == "USER" || name == "LOGNAME" || name == "SHELL" ||
           name == "MAIL" || name.starts_with("XDG_") || name.starts_with("SUDO_") ||
           name.starts_with("SSH_") || name.starts_with("DBUS_");
  });
  return environment;
}

Environment WithVirtualEnv(Environment environment, const v1::JobSpec& spec) {
  const std::string* const place = FindEnv(spec.env(), "VIRTUAL_ENV");
  if (place == nullptr || place->empty() || FindEnv(spec.env(), "PATH") != nullptr) {
    return environment;
  }
  const auto path = environment.find("PATH");
  environment["PATH"] =
      fmt::format("{}/bin:{}", *place,
                  path == environment.end() ? "/usr/local/bin:/usr/bin:/bin" : path->second);
  return environment;
}

Environment RankEnvironment(const Environment& inherited, const v1::GenerationRecord& record,
                            int local_rank, const HostFacts& host, const v1::RankLaunch& launch) {
  const v1::Prepare& prepare = record.prepare();
  const v1::RankAssignment& self = prepare.ranks(local_rank);
  const int local_world_size = prepare.ranks_size();

  Environment env = inherited;
  for (const v1::EnvEntry& entry : prepare.spec().env()) env[entry.name()] = entry.value();
  env.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  // One thread per slot. A rank that is alone on its host, and whose job asks for no number of
  // CPUs, gets all cores: OpenMP itself does not see the limits of a cgroup or of --cores. No rank
  // has more threads than cores that it is bound to.
  uint32_t threads = CpusPerProc(prepare.spec());
  if (local_world_size == 1 && threads == 1) threads = host.cores;
  if (!host.cores_of_ranks.empty()) {
    const size_t bound = host.cores_of_ranks[static_cast<size_t>(local_rank)].size();
    threads = std::min(threads, static_cast<uint32_t>(bound));
  }
  env.emplace("OMP_NUM_THREADS", fmt::format("{}", threads));
  // A script's output must reach its log when it is printed, not when a buffer is full.
  env.emplace("PYTHONUNBUFFERED", "1");
  // Gloo would tell the others the address of this host's name: for each of them, its own.
  if (!host.gloo_interface.empty() && prepare.node_count() > 1) {
    env.emplace("GLOO_SOCKET_IFNAME", host.gloo_interface);
  }

  const auto set = [&env](const char* name, const auto& value) {
    env[name] = fmt::format("{}", value);
  };
  set("RANK", self.rank());
  const bool is_virtual = prepare.spec().virtual_local_rank();
  set("LOCAL_RANK", is_virtual ? 0 : self.local_rank());
  set("WORLD_SIZE", prepare.world_size());
  set("LOCAL_WORLD_SIZE", local_world_size);
  set("GROUP_RANK", self.node_rank());
  set("GROUP_WORLD_SIZE", prepare.node_count());
  set("NODE_RANK", self.node_rank());
  set("ROLE_RANK", self.rank());
  set("ROLE_WORLD_SIZE", prepare.world_size());
  const std::string* const role = FindEnv(prepare.spec().env(), "ROLE_NAME");
  set("ROLE_NAME", role == nullptr ? "default" : *role);
  set("TORCHELASTIC_RESTART_COUNT", prepare.restarts());
  set("TORCHELASTIC_MAX_RESTARTS", prepare.spec().max_restarts());
  set("TORCHELASTIC_RUN_ID", record.fence().job_id());
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  set("TORCHELASTIC_ERROR_FILE", launch.error_file());

  set("MESHRUN_AGENT", host.agent_address);
  set("MESHRUN_JOB_ID", record.fence().job_id());
  set("MESHRUN_GENERATION", record.fence().generation());
  set("MESHRUN_TOKEN", record.token());
  set("MESHRUN_REPORT", launch.report_socket());
  set("MESHRUN_STACK_FILE", launch.stack_file());
  set("MESHRUN_PICTURES", launch.picture_directory());
  set("MESHRUN_NODE_NAME", host.node_name);
  env.erase("MESHRUN_MESH");
  if (prepare.mesh_size() > 0) set("MESHRUN_MESH", FormatMesh(AxesOf(prepare.mesh())));

  env.erase("MESHRUN_GPUS");
  if (host.has_gpus) {
    // All GPUs of the job on this host, so that with one GPU for each rank LOCAL_RANK is the index
    // that scripts expect. Both lists have the host's numbers; the index that CUDA gives a GPU is
    // its position in the first list.
    const auto name = [&host](uint32_t gpu) {
      const auto uuid = host.gpu_uuids.find(gpu);
      return uuid == host.gpu_uuids.end() ? fmt::to_string(gpu) : uuid->second;
    };
    const auto names = [&name](const auto& gpus) {
      std::vector<std::string> out;
      for (const uint32_t gpu : gpus) out.push_back(name(gpu));
      return out;
    };
    std::vector<uint32_t> gpus;
    for (const v1::RankAssignment& rank : prepare.ranks()) {
      if (is_virtual && rank.rank() != self.rank()) continue;
      gpus.insert(gpus.end(), rank.gpus().begin(), rank.gpus().end());
    }
    set("CUDA_VISIBLE_DEVICES", fmt::to_string(fmt::join(names(gpus), ",")));
    set("MESHRUN_GPUS", fmt::to_string(fmt::join(names(self.gpus()), ",")));
    // The order of the inventory: in any other order the numbers would name other GPUs.
    set("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
  }
  return env;
}

}  // namespace meshrun::worker
