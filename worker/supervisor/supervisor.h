// The supervisor of one job's rank processes on one host: a small process of its own, their parent,
// that outlives its daemon for the length of the lease. docs/architecture.md, "Rank processes".
//
//   PREPARED --start--> RUNNING --stop--> STOPPING --grace over--> KILLING --no child left--> ENDED
//
//   RUNNING            --start: more processes, for a later generation--> RUNNING
//   PREPARED           --stop--> ENDED
//   RUNNING, STOPPING  --all ranks have exited, no child is left--> ENDED
//   RUNNING, STOPPING  --all ranks have exited, some child is left for a moment--> KILLING
//   any but ENDED      --lease over or lifeline broken--> KILLING; the process exits after ENDED
//   RUNNING, STOPPING  --fence time over (SupervisorPing)--> KILLING
//   RUNNING            --SIGTERM, SIGINT, SIGQUIT--> STOPPING, as by a stop; no other one ends it
//
// A stop sends ranks SIGTERM. It may name a signal that goes first; then SIGTERM follows after a
// while.
//
// The lease is over when the daemon has been silent for so long; it does not count while a daemon
// is connected that has sent a fence time.
//
// One thread decides, in one poll loop without gRPC. Another thread copies the ranks' output
// (output_copier.h), and a third one writes their event files, where the job asks for these
// (event_files.h). The daemon speaks to the supervisor through "sup.sock" in the processes'
// directory; one daemon at a time, the newest counts. No exit is lost while the supervisor runs:
// each new connection gets the whole state, and the last state is written to the file "final".
//
// Where the launch asks for it, the ranks' program is searched for first; a start waits for the end
// of the search.
#pragma once

#include <poll.h>

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/os/fd.h"
#include "meshrun/v1/supervisor.pb.h"
#include "worker/cgroups/cgroups.h"
#include "worker/event_files/event_files.h"
#include "worker/supervisor/frame.h"
#include "worker/supervisor/latest_reports.h"
#include "worker/supervisor/output_copier.h"
#include "worker/supervisor/program_search.h"

namespace meshrun::worker {

struct SupervisorOptions {
  v1::SupervisorLaunch launch;
  // Directory of the processes, with sup.sock and final.
  std::string directory;
  // Listening already, where the daemon made the socket; else the supervisor binds sup.sock itself.
  os::UniqueFd listener;
  // Read end of a pipe: EOF kills everything at once.
  os::UniqueFd lifeline;
  // Kill when the daemon's connection breaks, instead of waiting for the lease.
  bool end_with_daemon = false;
  // What the rank of this number reads from; or one FIFO for each rank, by its number. The others
  // read from /dev/null.
  os::UniqueFd stdin_fd;
  int stdin_rank = 0;
  std::string stdin_directory;
  // Ranks write to pseudo-terminals of this size; absent: to pipes.
  std::optional<TerminalSize> terminal;
};

// One per process: it owns the signal mask, the child subreaper and waitpid(-1).
class Supervisor {
 public:
  // Binds the sockets. Errors: from the sockets' paths.
  static absl::StatusOr<std::unique_ptr<Supervisor>> Create(SupervisorOptions options);

  // Returns when nothing is left to supervise and the daemon has released it, or is gone.
  void Run();

 private:
  using Time = std::chrono::steady_clock::time_point;
  enum class Phase { kPrepared, kRunning, kStopping, kKilling, kEnded };

  struct Rank {
    v1::RankLaunch launch;
    pid_t pid = -1;
    // Collected by waitpid: the pid may be another process's.
    bool reaped = false;
    // And its output is in its files, as far as they take it.
    bool exited = false;
    int wait_status = 0;
    int draining = 0;
    Time drained_by = Time::max();
    // It was stopped alone, and is killed at this time.
    bool stop_sent = false;
    Time kill_at = Time::max();
    // Nothing of it is left: another process may take its place.
    bool cleared = false;
    v1::RankExit exit;
    os::UniqueFd reports;
    // End of its stderr, for what its user must know; of ranks with event files.
    os::UniqueFd errors;
    v1::Progress progress;
    LatestReports latest;
    // Those since the last message to the daemon.
    std::deque<v1::StepTime> steps;
  };

  explicit Supervisor(SupervisorOptions options) : options_(std::move(options)) {}
  absl::Status Bind();

  bool Finished() const;
  std::vector<pollfd> PollSet() const;
  int PollTimeout(Time now) const;
  void Dispatch(const std::vector<pollfd>& fds);
  void AtTime(Time now);

  void Accept();
  void ReadRequests();
  void Disconnect();
  void Handle(const v1::SupervisorRequest& request);
  void Send(const v1::SupervisorResponse& response);

  void EndSearch(v1::ProgramFound found);
  void Start(v1::SupervisorStart start);
  // Starts what waits to be started, once nothing is left of the processes that have ended.
  void ContinueStarting(Time now);
  bool ClearEnded();
  void StartNow();
  absl::StatusOr<pid_t> Spawn(Rank& rank, const v1::SupervisorStart& start);
  void Refuse(const std::string& why);
  void Stop(std::chrono::nanoseconds grace, int first_signal);
  // To all ranks that have not ended.
  void EndRanks(int signal);
  void StopAlone(const v1::SupervisorStop& stop);
  void Signal(const v1::SupervisorSignal& signal);
  // Processes that were stopped alone, when their grace is over.
  void KillAlone(Time now);
  void TakePing(const v1::SupervisorPing& ping);
  // The daemon holds its connection and has sent a fence time. If it is silent it only stalls, and
  // then the fence time decides, not the lease.
  bool DaemonLives() const;
  // Time until the fence; absent where there is none.
  std::optional<std::chrono::nanoseconds> UntilFence() const;
  void Abandon(const char* why);
  void Kill();
  // Collects every child that has ended, and finds out whether any is left, or any process of its
  // cgroup, whoever its parent is.
  void Reap();
  void RecordExit(Rank& rank, int wait_status);
  // When its output is copied.
  void CompleteExit(Rank& rank);
  // What the limits of the ranks' cgroup have done; at least with each ping.
  void LookAtLimits();
  // Says so where a limit may have ended the rank: it has done something in the last seconds.
  void BlameLimits(v1::RankExit* exit);
  void FinishExit(Rank& rank);
  os::UniqueFd OpenInput(int rank) const;
  absl::StatusOr<os::UniqueFd> OpenStream(const Rank& rank, bool is_stderr);
  void ReadCopies();
  void ReadSignals();
  void ReadReports(Rank& rank);
  // `report` has come, from which the rank's progress has become what it is.
  void WriteEvents(const Rank& rank, v1::Progress report);
  void ReadEventFiles(short ready);
  void SendProgress(Time now);
  v1::SupervisorState State() const;
  // Supervisors log rarely, and to their daemon's stderr. A line that a pipe has no room for is
  // lost: whoever reads the pipe may have stopped.
  void Say(const std::string& text) const;
  // In the rank's stderr, too, without waiting for room there.
  void SayToUser(const Rank& rank, const std::string& text) const;
  // Whose the ranks are; null: this process's.
  const v1::RankUser* User() const {
    return options_.launch.has_user() ? &options_.launch.user() : nullptr;
  }
  static Time Now() { return std::chrono::steady_clock::now(); }

  SupervisorOptions options_;
  Phase phase_ = Phase::kPrepared;
  std::vector<Rank> ranks_;
  std::unique_ptr<OutputCopier> copier_;
  // With the first report of a rank that has an event directory.
  std::unique_ptr<EventFiles> event_files_;
  bool lost_events_told_ = false;
  size_t running_ = 0;
  std::optional<ProgramSearch> search_;
  std::optional<v1::ProgramFound> found_;
  // Came during the search.
  std::optional<v1::SupervisorStart> start_;
  bool stop_sent_ = false;
  // What the limits of its cgroup did at the last looks: before and after the last change, which
  // was seen then.
  CgroupCounts counts_before_;
  CgroupCounts counts_;
  Time counts_changed_ = Time::min();
  // A sentence, where a signal that this process was sent has stopped the ranks.
  std::string stopped_by_;
  bool released_ = false;
  // No daemon will ask for the exits: end with the ranks.
  bool abandoned_ = false;
  os::UniqueFd signals_;
  os::UniqueFd listener_;
  os::UniqueFd lifeline_;
  os::UniqueFd connection_;
  FrameReader reader_;
  FrameWriter writer_;
  Time lease_end_;
  v1::SupervisorPing ping_;
  // Waits until what ended processes have left is gone.
  std::optional<v1::SupervisorStart> starting_;
  Time start_at_ = Time::max();
  Time start_until_ = Time::max();
  // When SIGTERM follows the first signal of a stop.
  Time terminate_at_ = Time::max();
  // When KILLING begins (RUNNING, STOPPING), and when it tries again (KILLING).
  Time kill_at_ = Time::max();
  std::chrono::milliseconds kill_again_{0};
  Time progress_at_ = Time::max();
  Time last_progress_ = Time::min();
  uint64_t malformed_reports_ = 0;
};

// `meshrun-worker supervise --launch FILE [--listen-fd N] [--lifeline-fd N] [--end-with-daemon]
// [--stdin-fd N --stdin-rank N | --stdin-directory DIR] [--terminal COLUMNSxROWS]`: returns the
// exit code. Starts in milliseconds: call it before anything else in main.
int SuperviseMain(int argc, char** argv);

}  // namespace meshrun::worker
