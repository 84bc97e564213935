// The rank processes of one job on this host, as its daemon sees them: their record, their
// supervisor, their exits. Lives on the event loop's thread.
//
//   Create, on a Preparation -> the supervisor has found the ranks' program: on_ready, or has not:
//   on_unready
//   Start -> on_started -> on_exit per process; Start of a later generation adds processes
//   no process is left -> on_ended
//   The supervisor gone before it said "ended": whatever is left of the ranks is killed, exits that
//   nobody saw are made up (SIGKILL), on_ended, after a moment.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "meshrun/v1/supervisor.pb.h"
#include "worker/event_loop/event_loop.h"
#include "worker/files/file_tasks.h"
#include "worker/generations/preparation.h"
#include "worker/generations/process_name.h"
#include "worker/generations/supervisor_link.h"
#include "worker/launch/launch_plan.h"

namespace meshrun::worker {

class RankProcesses {
 public:
  struct Handler {
    std::function<void(RankProcesses&)> on_ready;
    // The program was not found. Called instead of on_ready; nothing else follows.
    std::function<void(RankProcesses&, const v1::ProgramFound&)> on_unready;
    // All processes of the generation have been started, or have lived on into it.
    std::function<void(RankProcesses&, uint64_t generation)> on_started;
    std::function<void(RankProcesses&, const ProcessName&, const v1::RankExit&)> on_exit;
    std::function<void(RankProcesses&, const ProcessName&, const v1::ProcessProgress&)> on_progress;
    std::function<void(RankProcesses&)> on_ended;
  };

  // What a preparation has made and started; its connection is taken.
  static std::shared_ptr<RankProcesses> Create(EventLoop& loop, FileTasks& files,
                                               Preparation& preparation, Handler handler);
  // Takes over what an earlier incarnation left in `directory`. on_ready is called when its state
  // is known; where the supervisor is gone, on_ended instead, later. Errors: no readable record.
  // Reads the record: before the loop runs.
  static absl::StatusOr<std::shared_ptr<RankProcesses>> Adopt(EventLoop& loop, FileTasks& files,
                                                              const std::string& directory,
                                                              Handler handler);
  ~RankProcesses();

  // Starts what the generation starts; its record should be durable by then.
  void Start(const v1::GenerationRecord& generation);
  // SIGTERM, before it `first_signal` where that is not 0, and SIGKILL after the grace. A second
  // stop can only shorten the grace.
  void Stop(std::chrono::nanoseconds grace, int first_signal = 0);
  void StopAlone(const std::vector<ProcessName>& names, std::chrono::nanoseconds grace);
  // To these processes, as far as they live; not to what they have started.
  void Signal(const std::vector<ProcessName>& names, int signal);
  // For all its processes, if they have a cgroup.
  void SetLimits(const v1::ResourceLimits& limits);
  // SIGKILL to everything, by way of the supervisor and without it.
  void KillNow();
  // Nothing was started, and nothing will be: the supervisor ends. No handler is called.
  void Discard();
  // Marks the ranks as orphans, which a stop ends for want of a coordinator. Returns false if they
  // were orphans already.
  bool MarkOrphaned() { return !std::exchange(orphaned_, true); }
  // Renews the supervisor's lease.
  void Ping(const v1::SupervisorPing& ping);

  // Writes the generation into the record, durable against a restart of the daemon, and then calls
  // `done`. `first`, where it is not empty, is a directory that is made before.
  void Save(const v1::GenerationRecord& generation, std::function<void(const absl::Status&)> done,
            const std::string& first = "");
  // Takes it out of the record; `former`: a process may still ask for it.
  void Erase(const v1::GenerationRecord& generation, bool former);

  const v1::ProcessesRecord& record() const { return record_; }
  const std::string& job_id() const { return record_.job_id(); }
  const std::string& directory() const { return directory_; }
  bool ready() const { return ready_; }
  bool ended() const { return ended_; }
  // All its processes were told to end.
  bool stopping() const { return stopping_; }
  // It has a process that no exit is known of.
  bool Runs(const ProcessName& name) const;
  // nullptr: it has not ended.
  const v1::RankExit* FindExit(const ProcessName& name) const;
  int64_t PidOf(const ProcessName& name) const;
  // The processes whose exit is not known.
  std::vector<ProcessName> Running() const;
  // Directories that they write their output to.
  std::set<std::string> logs;
  // What an earlier incarnation of the daemon said last.
  const v1::SupervisorPing& inherited_ping() const { return inherited_ping_; }

 private:
  RankProcesses(EventLoop& loop, FileTasks& files, v1::ProcessesRecord record,
                std::string directory, Handler handler);
  absl::Status Connect();
  SupervisorLink::Handler LinkHandler();
  // Work that a file system may hold up; `done` on the loop, unless this object is gone.
  void OffLoop(std::function<void()> work, std::function<void()> done);
  void OnMessage(const v1::SupervisorResponse& response);
  void TakeState(const v1::SupervisorState& state);
  void TakeExit(const v1::RankExit& exit);
  void OnSupervisorGone();
  // Kills the processes that have this job's token in their environment, until none is left; then
  // they have ended.
  void KillLeftBehind(int pass);
  void OnLeftBehindKilled(int pass, int killed);
  void EndWithoutSupervisor(const v1::SupervisorState& last);
  void End();
  void WatchChild(pid_t pid);
  void Write(std::function<void(const absl::Status&)> done, const std::string& first);

  struct Process {
    int64_t pid = 0;
    std::optional<v1::RankExit> exit;
  };

  EventLoop& loop_;
  FileTasks& files_;
  v1::ProcessesRecord record_;
  const std::string directory_;
  Handler handler_;
  std::unique_ptr<SupervisorLink> link_;
  // Expires with this object.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<ProcessName, Process> processes_;
  v1::SupervisorPing inherited_ping_;
  // An earlier incarnation of the daemon started it, and its state has not come yet.
  bool inherited_ = false;
  // When the supervisor started, as of os::ProcessStat; absent: it is no child of this process.
  std::optional<uint64_t> supervisor_since_;
  bool ready_ = false;
  bool stopping_ = false;
  bool orphaned_ = false;
  bool ended_ = false;
};

}  // namespace meshrun::worker
