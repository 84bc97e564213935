// The worker daemon of one host: state directory, inventory, session, generations, agent socket,
// logs.
//
// One event loop holds the state; gRPC's threads only post to it. Run is the loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/certificates/expiry_watch.h"
#include "core/ids.h"
#include "core/os/fd.h"
#include "core/rpc/loop_health.h"
#include "core/rpc/security.h"
#include "worker/agent_server/agent_server.h"
#include "worker/cgroups/cgroups.h"
#include "worker/coordinators.h"
#include "worker/dumps/rank_uploads.h"
#include "worker/event_loop/event_loop.h"
#include "worker/files/file_tasks.h"
#include "worker/generations/agent_socket.h"
#include "worker/generations/generations.h"
#include "worker/generations/port_range.h"
#include "worker/generations/state_dir.h"
#include "worker/health/host_checks.h"
#include "worker/host_address.h"
#include "worker/launch/log_layout.h"
#include "worker/logs/log_uploads.h"
#include "worker/logs/retention.h"
#include "worker/metrics/host_http.h"
#include "worker/session.h"
#include "worker/supervisor/terminal.h"

namespace meshrun::worker {

struct DaemonOptions {
  // One address, or several with commas. Empty: rpc::DefaultConnectAddress.
  std::string coordinator;
  std::string state_dir;
  // Empty: the host's name.
  std::string name;
  // Where ranks of other hosts reach this host, the preferred one first. Empty: the address that
  // faces the coordinator, then those of the other interfaces.
  std::vector<std::string> addresses;
  std::optional<uint32_t> cores;
  std::optional<uint32_t> slots;
  std::optional<uint64_t> memory_bytes;
  // Its GPUs, by index or UUID; empty: all that CUDA_VISIBLE_DEVICES leaves.
  std::vector<std::string> gpu_ids;
  // Ranks of a job that leaves their number to each node; 0: 1.
  uint32_t ranks = 0;
  // Ranks run as the user who submitted their job. Needs root.
  bool run_as_submitter = false;
  // Leaves the cluster that the state directory belongs to for the one with this id.
  std::string join_cluster;
  PortInterval ports;
  // For jobs' constraints.
  std::map<std::string, std::string> labels;
  // Empty: DefaultJobsDirectory().
  std::string jobs_dir;
  rpc::Security security;
  // Where /metrics and /healthz are served; empty: nowhere.
  std::string http;
  // Ranks' metrics have the name of their job, of which there is no end.
  bool metrics_job_label = false;
  // Ranks are stopped after this long without a coordinator. Minutes: a coordinator that stalls, or
  // is being moved to another host, stops no training.
  std::chrono::nanoseconds orphan_timeout = std::chrono::minutes(5);
  // When stopping: how long to wait, after the last job's grace, for ranks that do not end.
  std::chrono::nanoseconds stop_timeout = std::chrono::seconds(10);
  rpc::LoopHealth::Options health;
  // A file system that does not answer a job for so long is that job's error. Two of them fit into
  // the coordinator's patience with Prepare.
  std::chrono::nanoseconds file_timeout = std::chrono::seconds(10);
  // Limit of each of a running rank's two output files: beyond it the oldest bytes go. 0: no limit.
  uint64_t log_limit_bytes = uint64_t{1} << 30;
  // Checks of this host; with an interval of 0 there are none.
  HostChecks::Options host_checks;
  // Bytes that must be free in the state directory for new jobs.
  uint64_t least_free_bytes = uint64_t{32} << 20;
  // The operator's own check, an absolute path; empty: none. It has so long.
  std::string health_check;
  std::chrono::nanoseconds health_check_timeout = std::chrono::minutes(1);
  // Limit of what all running ranks' files may take together. 0: no limit.
  uint64_t running_logs_bytes = uint64_t{16} << 30;
  // A directory of the user's for output, beside the state directory.
  LogLayout log_layout;
  // What the rank of this number reads from; without it every rank reads from /dev/null.
  os::UniqueFd stdin_fd;
  int stdin_rank = 0;
  // One FIFO for each rank to read from, by its number. Empty: none.
  std::string stdin_directory;
  // Ranks write to pseudo-terminals of this size; absent: to pipes.
  std::optional<TerminalSize> terminal;
  // What jobs are held to by a cgroup: of kAllLimits.
  std::set<std::string> limits;
  uint64_t pids_per_rank = HostLimits().pids_per_rank;
  // Limits for the logs of ended generations; the daemon itself sets `root` and `newest`.
  LogRetention keep_logs;
  // When this daemon is gone, supervisors kill their ranks at once, without waiting for the lease.
  bool kill_at_once = false;
  // Descriptor that gets one JSON line when the coordinator has welcomed this daemon.
  os::UniqueFd ready_fd;
  // EOF stops the daemon immediately.
  os::UniqueFd lifeline_fd;
  // The holder of its other end, for messages.
  std::string lifeline_of = "the process that started it";
};

class Daemon {
 public:
  // Errors: from the state directory and from TLS, and a name or address that cannot be determined.
  static absl::StatusOr<std::unique_ptr<Daemon>> Create(DaemonOptions options);
  ~Daemon();

  // Runs until one of os::TerminationSignals (which the caller has blocked). Then the daemon takes
  // nothing new, stops all ranks with each job's grace (at once after a second signal), and says
  // Goodbye to the coordinator. Ranks that cannot be killed are left to their supervisor after a
  // while. An error: the coordinator refused this daemon.
  absl::Status Run();

  const std::string& node_id() const { return state_dir_->node_id(); }

 private:
  explicit Daemon(DaemonOptions options) : options_(std::move(options)) {}
  absl::Status Init();
  void FindCgroups();
  absl::Status BeginHttp();
  HostMeasures Measure() const;
  // Looks how much room the output of ranks has, and again later.
  void LookAtLogSpace();
  void AddHostChecks();
  v1::HostHealth HealthOfHost() const;
  v1::Hello MakeHello() const;
  void OnWelcome(const v1::Welcome& welcome, const v1::Hello& hello);
  void OnMessage(const v1::OpenSessionResponse& message);
  void OpenPictures(const v1::OpenPictures& open);
  bool OnRefused(const absl::Status& status);
  void Beat();
  void OnGenerationEnded(const std::string& job_id, uint64_t generation);
  void PruneOldLogs();
  void PruneLogsLater();
  // Tells the coordinator what was removed since it was last told.
  void SayRemoved();

  // daemon_stop.cc
  void WatchSignals();
  void WatchLifeline();
  // It stops its ranks, for `stopping_because_`.
  bool IsEnding();
  void OnTick();
  // Stops the ranks when the coordinator has been silent for the orphan timeout, and kills them at
  // the fence time.
  void CheckContact();
  v1::SupervisorPing MakePing() const;
  // When the ranks are killed, after the last contact.
  std::chrono::nanoseconds KillAfter() const;
  // `because`: what follows "this worker stops: ".
  void Stop(const std::string& because, bool at_once);
  // Ends the ranks that wait to be moved once there has been no session for a while.
  void StopWithoutACoordinator(const std::string& reason, std::chrono::nanoseconds last_open);
  void EndWhenQuiet();
  void End();

  DaemonOptions options_;
  EventLoop loop_;
  FileTasks files_{loop_};
  RandomIdSource ids_;
  const std::string machine_id_ = MachineId();
  // Addresses; one at least.
  std::vector<std::string> coordinators_;
  Channels channels_;
  std::optional<certificates::ExpiryWatch> expiry_;
  os::UniqueFd signals_;
  std::optional<StateDir> state_dir_;
  std::unique_ptr<PortRange> ports_;
  v1::Resources resources_;
  Cgroups cgroups_;
  std::vector<std::string> shipped_jobs_;
  std::unique_ptr<Generations> generations_;
  std::unique_ptr<AgentServer> agent_server_;
  std::unique_ptr<rpc::LoopHealth> health_;
  std::unique_ptr<HostChecks> host_checks_;
  std::unique_ptr<HostHttp> http_;
  // For probes.
  std::unique_ptr<AgentSocket> own_socket_;
  std::unique_ptr<LogUploads> logs_;
  std::unique_ptr<RankUploads> uploads_;
  // Shared with the thread that removes logs, which a file system may hold beyond our end.
  std::shared_ptr<LogsInUse> logs_in_use_ = std::make_shared<LogsInUse>();
  // By user, not told yet.
  std::map<std::string, RemovedLogs> removed_;
  std::optional<std::chrono::steady_clock::time_point> said_removed_;
  bool prune_again_ = false;
  bool pruning_ = false;
  std::unique_ptr<Session> session_;
  std::chrono::nanoseconds ping_interval_{std::chrono::seconds(1)};
  bool stopping_ = false;
  std::string stopping_because_;
  bool ending_ = false;
  bool orphaned_ = false;
  bool fenced_ = false;
  EventLoop::TimerId contact_timer_ = 0;
  absl::Status outcome_;
  std::thread ender_;
};

}  // namespace meshrun::worker
