// One generation of one job on this host, as its daemon sees it: its record, its supervisor, the
// reports and exits of its ranks. Lives on the event loop's thread.
//
//   Prepare: files written, supervisor spawned (see Preparation)
//   the supervisor has found the ranks' program -> on_prepared, or on_unprepared and no more
//   Start -> on_started(pids) -> on_exit per rank -> on_ended
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
#include <vector>

#include "absl/status/statusor.h"
#include "meshrun/v1/session.pb.h"
#include "meshrun/v1/store_service.pb.h"
#include "meshrun/v1/supervisor.pb.h"
#include "worker/event_loop/event_loop.h"
#include "worker/files/file_tasks.h"
#include "worker/generations/preparation.h"
#include "worker/generations/supervisor_link.h"

namespace meshrun::worker {

// Is told when the generation is being stopped, news of other ranks, requests for flight records,
// and the end.
class GenerationWatcher {
 public:
  virtual ~GenerationWatcher() = default;
  virtual void OnStopping(const std::string& reason) = 0;
  virtual void OnNews(const v1::PeerNews& news) = 0;
  virtual void OnFlightRecordWanted(uint64_t request) = 0;
  virtual void OnEnded() = 0;
};

class Generation {
 public:
  struct Handler {
    std::function<void()> on_prepared;
    // The ranks cannot run here.
    std::function<void(const v1::ProgramFound& why)> on_unprepared;
    std::function<void()> on_started;
    std::function<void(const v1::RankExit&)> on_exit;
    std::function<void()> on_ended;
    // Some rank's progress changed; take it with TakeProgress.
    std::function<void()> on_progress;
  };

  // Takes over what a preparation has begun well. `files` outlives all generations.
  static std::unique_ptr<Generation> Create(EventLoop& loop, FileTasks& files,
                                            Preparation& preparation, Handler handler);
  // Takes over what an earlier incarnation left in `directory`. on_prepared is called when its
  // state is known; where the supervisor is gone, on_ended instead, later. Errors: no readable
  // record.
  static absl::StatusOr<std::unique_ptr<Generation>> Adopt(EventLoop& loop, FileTasks& files,
                                                           const std::string& directory,
                                                           Handler handler);
  ~Generation();

  // A second start is ignored.
  void Start(const v1::Start& start);
  // SIGTERM, and SIGKILL after the grace; a second one can only shorten it.
  void Stop(std::chrono::nanoseconds grace, const std::string& reason);
  // Ends the supervisor of a generation that never starts. Nothing is reported any more.
  void Discard();
  // Renews the supervisor's lease.
  void Ping();
  // From the coordinator, for the ranks here.
  void Tell(const v1::PeerNews& news);
  void AskForFlightRecords(uint64_t request);

  const v1::GenerationRecord& record() const { return record_; }
  const v1::Fence& fence() const { return record_.fence(); }
  const std::string& directory() const { return directory_; }
  const std::map<int, int64_t>& pids() const { return pids_; }
  const std::map<int, v1::RankExit>& exits() const { return exits_; }
  std::chrono::nanoseconds kill_grace() const;
  bool prepared() const { return prepared_; }
  bool started() const { return started_; }
  bool ended() const { return ended_; }
  bool RankMayWrite(int rank) const;
  const v1::RankAssignment* FindRank(int rank) const;
  v1::RunningGeneration Running() const;

  void MergeRankProgress(int rank, const v1::Progress& progress);
  // What changed since the last call; absent when nothing did.
  std::optional<v1::ProgressReport> TakeProgress();
  // Marks everything as changed: for a coordinator that may have missed it.
  void OfferProgressAgain();

  // Wait reports of this host's blocked ranks, by rank: for a coordinator that may have missed
  // them.
  void SetWaiting(const v1::WaitReport& report) { waiting_[report.rank()] = report; }
  void ClearWaiting(int rank) { waiting_.erase(rank); }
  const std::map<int, v1::WaitReport>& waiting() const { return waiting_; }

  // Until RemoveWatcher. Past events are replayed at once.
  void AddWatcher(GenerationWatcher* watcher);
  void RemoveWatcher(GenerationWatcher* watcher) { watchers_.erase(watcher); }

  // The world table, once a rank has asked for it.
  std::optional<v1::GetWorldResponse> world;

 private:
  Generation(EventLoop& loop, FileTasks& files, v1::GenerationRecord record, std::string directory,
             Handler handler);
  absl::Status Connect();
  SupervisorLink::Handler LinkHandler();
  // Runs `work` off the loop, then `done` on it, unless this generation is gone by then.
  void OffLoop(std::function<void()> work, std::function<void()> done);
  void OnMessage(const v1::SupervisorResponse& response);
  void TakeState(const v1::SupervisorState& state);
  void TakeExit(const v1::RankExit& exit);
  void SendStart();
  void OnSupervisorGone();
  // Kills the processes that have this generation's token in their environment, until none is left;
  // then the generation has ended.
  void KillLeftBehind(int pass);
  void EndWithoutSupervisor(const v1::SupervisorState& last);
  void End();
  void OnLeftBehindKilled(int pass, int killed);
  void WatchChild(pid_t pid);

  EventLoop& loop_;
  FileTasks& files_;
  v1::GenerationRecord record_;
  const std::string directory_;
  Handler handler_;
  std::unique_ptr<SupervisorLink> link_;
  // Expires with this object.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  bool prepared_ = false;
  bool started_ = false;
  bool stopping_ = false;
  bool ended_ = false;
  std::string stop_reason_;
  std::map<int, int64_t> pids_;
  std::map<int, v1::RankExit> exits_;
  std::map<int, v1::Progress> progress_;
  std::set<int> progress_changed_;
  std::map<int, v1::WaitReport> waiting_;
  // Ranks that the watchers were told of.
  std::map<int, v1::RankLost> lost_;
  std::set<int> left_;
  std::set<GenerationWatcher*> watchers_;
};

}  // namespace meshrun::worker
