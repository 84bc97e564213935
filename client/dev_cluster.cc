#include "client/dev_cluster.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "client/daemon_process.h"
#include "core/os/cores.h"
#include "core/os/files.h"
#include "core/os/private_directory.h"
#include "core/os/process_stat.h"
#include "core/rpc/default_address.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

using nlohmann::json;

// Below the directory of the cluster's sockets.
constexpr std::string_view kSocket = "/coordinator.sock";
constexpr std::chrono::seconds kDaemonStartTimeout(10);
constexpr std::chrono::seconds kStopTimeout(15);
constexpr std::chrono::seconds kEndTimeout(2);

// Returns 0 if no process has this id, or if it has ended and only waits to be collected.
uint64_t StartTicks(pid_t pid) {
  const auto stat = os::ReadProcessStat(pid);
  return stat && !stat->IsZombie() ? stat->start_ticks : 0;
}

json ToJson(const DevCluster::Process& p) {
  return {{"name", p.name}, {"pid", p.pid}, {"start_ticks", p.start_ticks}, {"log", p.log_path}};
}

DevCluster::Process FromJson(const json& j) {
  DevCluster::Process p{j.value("name", ""), j.value("pid", 0), j.value("start_ticks", uint64_t{0}),
                        j.value("log", ""), false};
  p.running = p.pid > 0 && p.start_ticks != 0 && StartTicks(p.pid) == p.start_ticks;
  return p;
}

absl::Status Stop(const DevCluster::Process& process) {
  if (!process.running) return absl::OkStatus();
  const os::UniqueFd pidfd = OpenPid(process.pid);
  if (!pidfd) return absl::OkStatus();
  ::kill(process.pid, SIGTERM);
  if (WaitReadable(pidfd.get(), kStopTimeout)) return absl::OkStatus();
  ::kill(process.pid, SIGKILL);
  if (WaitReadable(pidfd.get(), kEndTimeout)) return absl::OkStatus();
  return absl::InternalError(fmt::format("{} (pid {}) does not end", process.name, process.pid));
}

// A process that has just been killed looks ended when its first thread is: the others may still
// hold its files, and so the lock of its state directory.
void AwaitEnd(const DevCluster::Process& process) {
  if (process.pid <= 0) return;
  const os::UniqueFd pidfd = OpenPid(process.pid);
  const auto stat = os::ReadProcessStat(process.pid);
  if (pidfd && stat && stat->start_ticks == process.start_ticks) {
    WaitReadable(pidfd.get(), kEndTimeout);
  }
}

absl::StatusOr<os::UniqueFd> Lock(const std::string& directory) {
  MESHRUN_RETURN_IF_ERROR(os::MakePrivateDirectory(directory));
  os::UniqueFd fd(::open((directory + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) return os::ErrnoStatus(errno, directory + "/lock");
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::AbortedError("another 'meshrun dev' is at work: try again when it has ended");
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::string> DevCluster::DefaultDirectory() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && state[0] == '/') {
    return std::string(state) + "/meshrun/dev";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') {
    return std::string(home) + "/.local/state/meshrun/dev";
  }
  return absl::FailedPreconditionError("neither HOME nor XDG_STATE_HOME is set: set one of them");
}

bool DevCluster::State::alive() const {
  return running() || std::any_of(workers.begin(), workers.end(),
                                  [](const Process& worker) { return worker.running; });
}

DevCluster::State DevCluster::Read() const {
  State state;
  const auto text = os::ReadFile(directory_ + "/endpoints.json");
  if (!text.ok()) return state;
  const json j = json::parse(*text, nullptr, false);
  if (!j.is_object()) return state;
  state.address = j.value("address", "");
  state.slots = j.value("slots", 0u);
  if (j.contains("coordinator")) state.coordinator = FromJson(j["coordinator"]);
  for (const json& worker : j.value("workers", json::array()))
    state.workers.push_back(FromJson(worker));
  return state;
}

absl::Status DevCluster::Write(const State& state) const {
  json j = {{"address", state.address}, {"slots", state.slots}, {"workers", json::array()}};
  if (state.coordinator) j["coordinator"] = ToJson(*state.coordinator);
  for (const Process& worker : state.workers) j["workers"].push_back(ToJson(worker));
  return os::WriteFileAtomically(directory_ + "/endpoints.json",
                                 j.dump(2, ' ', false, json::error_handler_t::replace) + "\n",
                                 0600);
}

absl::StatusOr<DevCluster::Process> DevCluster::StartProcess(const std::string& program,
                                                             const std::string& name,
                                                             std::vector<std::string> arguments,
                                                             std::string* ready) {
  const std::string log_path = fmt::format("{}/{}.log", directory_, name);
  arguments.insert(arguments.end(), {"--state-dir", fmt::format("{}/{}", directory_, name)});
  MESHRUN_ASSIGN_OR_RETURN(
      DaemonProcess daemon,
      DaemonProcess::Start(
          {.program = program, .arguments = std::move(arguments), .log_path = log_path}));
  auto line = daemon.WaitReady(kDaemonStartTimeout);
  if (!line.ok()) {
    daemon.Signal(SIGKILL);
    daemon.WaitEnded(std::chrono::seconds(1));
    return line.status();
  }
  *ready = *std::move(line);
  return Process{name, daemon.pid(), StartTicks(daemon.pid()), log_path, true};
}

absl::StatusOr<DevCluster::State> DevCluster::Up(const UpOptions& options) {
  MESHRUN_ASSIGN_OR_RETURN(const os::UniqueFd lock, Lock(directory_));
  State state = Read();
  uint32_t running = 0;
  for (const Process& worker : state.workers) running += worker.running ? 1 : 0;
  const uint32_t workers = options.workers != kAsBefore ? options.workers
                           : !state.workers.empty() ? static_cast<uint32_t>(state.workers.size())
                                                    : 1;
  if (running > workers) {
    return absl::FailedPreconditionError(
        fmt::format("{} workers run and {} {} asked for: run 'meshrun dev down' first", running,
                    workers, workers == 1 ? "is" : "are"));
  }
  if (running > 0 && options.slots != 0 && options.slots != state.slots) {
    return absl::FailedPreconditionError(
        fmt::format("--slots {}: {} with {}: run 'meshrun dev down' first", options.slots,
                    running == 1 ? "a worker runs" : fmt::format("{} workers run", running),
                    state.slots == 0 ? "the default" : fmt::format("--slots {}", state.slots)));
  }
  if (options.slots != 0) state.slots = options.slots;
  std::string ready;
  if (!state.running()) {
    if (state.coordinator) AwaitEnd(*state.coordinator);
    // On its former address and state: workers that live connect again, and their jobs go on.
    MESHRUN_ASSIGN_OR_RETURN(const std::string sockets,
                             rpc::SocketDirectory(directory_, kSocket.size()));
    MESHRUN_ASSIGN_OR_RETURN(
        state.coordinator,
        StartProcess("meshrun-coordinator", "coordinator",
                     // One machine is all of the hosts, and goes away with all of them.
                     {"--listen", fmt::format("unix:{}{}", sockets, kSocket), "--quarantine-after",
                      "0", "--quarantine-refusals", "0"},
                     &ready));
    state.address = fmt::format("unix:{}{}", sockets, kSocket);
    // Known from here on, so that 'dev down' ends it whatever comes next.
    MESHRUN_RETURN_IF_ERROR(Write(state));
  }
  const uint32_t cores = std::max(1u, os::WholeCores() / workers);
  for (uint32_t i = 0; i < workers; ++i) {
    const std::string name = fmt::format("worker-{}", i + 1);
    const size_t at = static_cast<size_t>(i);
    if (at < state.workers.size()) {
      if (state.workers[at].running) continue;
      AwaitEnd(state.workers[at]);
    }
    std::vector<std::string> arguments = {
        "--coordinator", state.address,       "--name", name, "--address",
        "127.0.0.1",     "--health-interval", "0"};
    // One machine is all of the hosts: each has its share of the cores.
    arguments.insert(arguments.end(), {"--cores", fmt::format("{}", cores)});
    if (state.slots != 0)
      arguments.insert(arguments.end(), {"--slots", fmt::format("{}", state.slots)});
    MESHRUN_ASSIGN_OR_RETURN(Process worker,
                             StartProcess("meshrun-worker", name, std::move(arguments), &ready));
    if (at < state.workers.size()) {
      state.workers[at] = std::move(worker);
    } else {
      state.workers.push_back(std::move(worker));
    }
    MESHRUN_RETURN_IF_ERROR(Write(state));
  }
  return state;
}

absl::StatusOr<DevCluster::State> DevCluster::Down(bool purge) {
  MESHRUN_ASSIGN_OR_RETURN(const os::UniqueFd lock, Lock(directory_));
  State state = Read();
  std::erase_if(state.workers, [](const Process& worker) { return !worker.running; });
  if (!state.running()) state.coordinator.reset();
  // All at once, then wait for each.
  for (const Process& worker : state.workers) ::kill(worker.pid, SIGTERM);
  for (Process& worker : state.workers) {
    MESHRUN_RETURN_IF_ERROR(Stop(worker));
    worker.running = false;
  }
  if (state.coordinator) {
    MESHRUN_RETURN_IF_ERROR(Stop(*state.coordinator));
    state.coordinator->running = false;
  }
  if (purge) {
    MESHRUN_RETURN_IF_ERROR(os::RemoveTree(directory_));
  } else {
    ::unlink((directory_ + "/endpoints.json").c_str());
  }
  return state;
}

}  // namespace meshrun::client
