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
  cluster->address_ = fmt::format("unix:{}/c.sock", path);

  MESHRUN_ASSIGN_OR_RETURN(
      cluster->coordinator_,
      DaemonProcess::Start(
          {.program = "meshrun-coordinator",
           .arguments = {"--listen", cluster->address_, "--ephemeral", "--log-level", "warning"},
           .log_path = path + "/coordinator.log",
           .lifeline_fd = lifeline_read.get()}));
  // The coordinator first: it serves after 10 ms, while gRPC retries a connection that failed only
  // after 100 ms.
  MESHRUN_RETURN_IF_ERROR(cluster->coordinator_->WaitReady(kStartTimeout).status());
  cluster->options_.trace("coordinator serves");
  std::vector<std::string> arguments = {"--coordinator",
                                        cluster->address_,
                                        "--state-dir",
                                        path + "/w",
                                        "--address",
                                        "127.0.0.1",
                                        "--slots",
                                        fmt::format("{}", options.slots),
                                        "--log-limit",
                                        fmt::format("{}", options.log_limit_bytes),
                                        "--kill-at-once-on-lifeline",
                                        "--log-level",
                                        "warning"};
  arguments.insert(arguments.end(), options.worker_flags.begin(), options.worker_flags.end());
  MESHRUN_ASSIGN_OR_RETURN(cluster->worker_,
                           DaemonProcess::Start({.program = "meshrun-worker",
                                                 .arguments = std::move(arguments),
                                                 .log_path = path + "/worker.log",
                                                 .lifeline_fd = lifeline_read.get(),
                                                 .keep_fds = options.worker_fds}));
  cluster->options_.trace("worker spawned");
  return cluster;
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
