#include "client/local_cluster.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/statvfs.h>

#include <algorithm>

#include "core/os/files.h"
#include "core/status.h"
#include "core/text.h"

namespace meshrun::client {
namespace {

constexpr std::chrono::seconds kStartTimeout(10);
// For the daemons' own files. The ranks' output makes room for itself.
constexpr uint64_t kLeastRoom = uint64_t{256} << 10;

// A daemon without room could not even log why it does not start.
absl::Status CheckRoom(const std::string& directory) {
  struct statvfs info = {};
  // File systems without blocks say nothing of their room.
  if (::statvfs(directory.c_str(), &info) != 0 || info.f_blocks == 0) return absl::OkStatus();
  const uint64_t free = uint64_t{info.f_bavail} * info.f_frsize;
  if (free >= kLeastRoom) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("{}: No space left on device ({} are free): set TMPDIR to another directory",
                  directory, FormatBytes(free)));
}

}  // namespace

uint32_t DefaultSlots(uint32_t cores) { return std::max<uint32_t>(cores, 8); }

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(const Options& options) {
  std::unique_ptr<LocalCluster> cluster(new LocalCluster);
  cluster->options_ = options;
  if (!cluster->options_.trace) cluster->options_.trace = [](const char*) {};

  MESHRUN_ASSIGN_OR_RETURN(cluster->directory_,
                           RunDirectory::Create(RunDirectory::DefaultParent()));
  const std::string& path = cluster->directory_.path();
  MESHRUN_RETURN_IF_ERROR(CheckRoom(path));
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return os::ErrnoStatus(errno, "pipe");
  const os::UniqueFd lifeline_read(pipe[0]);
  cluster->lifeline_ = os::UniqueFd(pipe[1]);
  cluster->address_ =
      options.coordinator.empty() ? fmt::format("unix:{}/c.sock", path) : options.coordinator;
  if (options.coordinator.empty() || !options.listen.empty()) {
    MESHRUN_RETURN_IF_ERROR(cluster->StartCoordinator(lifeline_read.get()));
  }
  MESHRUN_RETURN_IF_ERROR(cluster->StartWorker(lifeline_read.get()));
  return cluster;
}

absl::Status LocalCluster::StartCoordinator(int lifeline) {
  std::vector<std::string> arguments = {"--listen",
                                        options_.listen.empty() ? address_ : options_.listen,
                                        "--ephemeral", "--log-level", "warning"};
  arguments.insert(arguments.end(), options_.security_flags.begin(), options_.security_flags.end());
  MESHRUN_ASSIGN_OR_RETURN(coordinator_,
                           DaemonProcess::Start({.program = "meshrun-coordinator",
                                                 .arguments = std::move(arguments),
                                                 .log_path = directory_.path() + "/coordinator.log",
                                                 .lifeline_fd = lifeline}));
  // The coordinator first: it serves after 10 ms, while gRPC retries a connection that failed only
  // after 100 ms.
  MESHRUN_RETURN_IF_ERROR(coordinator_->WaitReady(kStartTimeout).status());
  options_.trace("coordinator serves");
  return absl::OkStatus();
}

absl::Status LocalCluster::StartWorker(int lifeline) {
  std::vector<std::string> arguments = {"--coordinator",
                                        address_,
                                        "--state-dir",
                                        directory_.path() + "/w",
                                        "--slots",
                                        fmt::format("{}", options_.slots),
                                        "--log-limit",
                                        fmt::format("{}", options_.log_limit_bytes),
                                        "--health-interval",
                                        "0",
                                        "--running-logs",
                                        "0",
                                        "--limits",
                                        "none",
                                        "--kill-at-once-on-lifeline",
                                        "--log-level",
                                        "warning"};
  const std::string address = options_.coordinator.empty() ? "127.0.0.1" : options_.node_address;
  if (!address.empty()) arguments.insert(arguments.end(), {"--address", address});
  if (!options_.node_name.empty()) {
    arguments.insert(arguments.end(), {"--name", options_.node_name});
  }
  if (!options_.lifeline_of.empty()) {
    arguments.insert(arguments.end(), {"--lifeline-of", options_.lifeline_of});
  }
  arguments.insert(arguments.end(), options_.security_flags.begin(), options_.security_flags.end());
  arguments.insert(arguments.end(), options_.worker_flags.begin(), options_.worker_flags.end());
  MESHRUN_ASSIGN_OR_RETURN(worker_,
                           DaemonProcess::Start({.program = "meshrun-worker",
                                                 .arguments = std::move(arguments),
                                                 .log_path = directory_.path() + "/worker.log",
                                                 .lifeline_fd = lifeline,
                                                 .keep_fds = options_.worker_fds}));
  options_.trace("worker spawned");
  return absl::OkStatus();
}

std::vector<DaemonProcess*> LocalCluster::daemons() {
  std::vector<DaemonProcess*> out;
  for (std::optional<DaemonProcess>* daemon : {&coordinator_, &worker_}) {
    if (*daemon) out.push_back(&**daemon);
  }
  return out;
}

absl::Status LocalCluster::WaitForWorker() {
  MESHRUN_RETURN_IF_ERROR(worker_->WaitReady(kStartTimeout).status());
  options_.trace("worker registered");
  return absl::OkStatus();
}

LocalCluster::~LocalCluster() {
  lifeline_.reset();
  for (std::optional<DaemonProcess>* daemon : {&worker_, &coordinator_}) {
    if (!*daemon) continue;
    if (!(*daemon)->WaitEnded(std::chrono::milliseconds(1500))) {
      (*daemon)->Signal(SIGKILL);
      (*daemon)->WaitEnded(std::chrono::seconds(1));
    }
  }
  if (directory_.path().empty()) return;
  directory_.Remove();
  RunDirectory::RemoveAbandoned(RunDirectory::DefaultParent());
  if (options_.trace) options_.trace("daemons ended");
}

}  // namespace meshrun::client
