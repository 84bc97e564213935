// One generation of one job on this host: which process is which rank, what its ranks have said,
// who listens. Lives on the event loop's thread.
//
//   prepared --Start--> started --a later generation of the same processes starts--> handed over
//   prepared, started --no process is left--> ended
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "meshrun/v1/agent_service.pb.h"
#include "meshrun/v1/session.pb.h"
#include "meshrun/v1/store_service.pb.h"
#include "meshrun/v1/supervisor.pb.h"
#include "worker/generations/rank_processes.h"
#include "worker/supervisor/latest_reports.h"

namespace meshrun::worker {

// One rank's watch of its generation. OnNewGeneration and OnEnded are its last calls.
class GenerationWatcher {
 public:
  virtual ~GenerationWatcher() = default;
  virtual void OnStopping(const std::string& reason) = 0;
  virtual void OnNews(const v1::PeerNews& news) = 0;
  virtual void OnFlightRecordWanted(uint64_t request, uint32_t most_operations) = 0;
  virtual void OnQuiesce(const v1::Quiesce& quiesce) = 0;
  virtual void OnNewGeneration(const v1::RegisterRankResponse& place) = 0;
  virtual void OnEnded() = 0;
};

class Generation {
 public:
  Generation(v1::GenerationRecord record, std::shared_ptr<RankProcesses> processes)
      : record_(std::move(record)), processes_(std::move(processes)) {}

  // Made durable; then its processes are started. A second start is ignored.
  void Start(const v1::Start& start);
  // Ranks are told; the processes are the caller's to stop.
  void TellStopping(const std::string& reason);
  // From the coordinator, for the ranks here.
  void Tell(const v1::PeerNews& told);
  // Returns the ranks that are asked.
  std::set<int> AskForFlightRecords(uint64_t request, uint32_t most_operations);
  // When that was done last, CLOCK_BOOTTIME.
  std::chrono::nanoseconds asked_for_records() const { return asked_for_records_; }
  void TellQuiesce(const v1::Quiesce& quiesce);
  // Those of its ranks whose processes `next` leaves out are about to be stopped.
  void TellLeftOut(const std::vector<ProcessName>& processes, uint64_t next);
  // The generation is over for its ranks, which live on in `next`, or are stopped.
  void HandOver(const Generation& next, const std::string& node_name);
  // No process is left.
  void TellEnded();

  // A rank has registered; `in_process`: it takes another generation. False: known.
  bool Join(int rank, bool in_process);
  // A rank stands still after so many steps.
  void TakeQuiesced(int rank, int64_t step);
  // Writes what Join and TakeQuiesced have changed. `done`: it is written, or cannot be.
  void Save(std::function<void()> done);
  // A rank of this generation has ended.
  void TakeExit(const v1::RankExit& exit);

  const v1::GenerationRecord& record() const { return record_; }
  const v1::Fence& fence() const { return record_.fence(); }
  const std::shared_ptr<RankProcesses>& processes() const { return processes_; }
  bool prepared() const { return processes_->ready(); }
  bool started() const { return record_.has_start(); }
  bool ended() const { return processes_->ended(); }
  bool stopping() const { return stopping_; }
  std::chrono::nanoseconds kill_grace() const;
  // Whether the coordinator may move its job in process: all its ranks here take another
  // generation.
  bool moves_in_process() const;
  const v1::RankAssignment* FindRank(int rank) const;
  std::optional<int> RankOf(const ProcessName& name) const;
  // Process ids of the processes that have been started, by rank.
  std::map<int, int64_t> Pids() const;
  // By rank, with this generation's ranks.
  std::map<int, v1::RankExit> Exits() const;
  v1::RunningGeneration Running() const;
  // What a rank is told of its place.
  v1::RegisterRankResponse PlaceOf(int rank, const std::string& node_name) const;

  // The last steps of a rank, for people.
  void KeepSteps(int rank, const v1::ProcessProgress& progress);
  const std::deque<v1::StepTime>& StepsOf(int rank) const;

  void MergeRankProgress(int rank, const v1::Progress& progress);
  // What its ranks have said so far, by rank, and how long a step took between the last two reports
  // of one.
  const std::map<int, v1::Progress>& progress() const { return progress_; }
  std::optional<double> StepSeconds(int rank) const;
  // What changed since the last call: one report, and more where a rank tells several steps.
  std::vector<v1::ProgressReport> TakeProgress();
  // Marks everything as changed: for a coordinator that may have missed it.
  void OfferProgressAgain();

  // Wait reports of this host's blocked ranks, by rank: for a coordinator that may have missed
  // them.
  void SetWaiting(const v1::WaitReport& report) { waiting_[report.rank()] = report; }
  void ClearWaiting(int rank) { waiting_.erase(rank); }
  const std::map<int, v1::WaitReport>& waiting() const { return waiting_; }
  // The report as this session's coordinator needs it: groups that it has been told of are named by
  // their ids alone.
  v1::WaitReport Shorten(v1::WaitReport report);
  // Another session begins.
  void ForgetSentGroups() { sent_groups_.clear(); }

  // Until RemoveWatcher. Past events are replayed at once.
  void AddWatcher(GenerationWatcher* watcher, int rank);
  void RemoveWatcher(GenerationWatcher* watcher) { watchers_.erase(watcher); }

  // The world table, once a rank has asked for it.
  std::optional<v1::GetWorldResponse> world;

 private:
  static constexpr size_t kMostVerdicts = 64;

  template <typename Call>
  void TellAll(const Call& call);
  // Leaves of the verdicts those that the watchers were not told of.
  void KeepNewVerdicts(v1::PeerNews* news);

  v1::GenerationRecord record_;
  const std::shared_ptr<RankProcesses> processes_;
  bool stopping_ = false;
  std::string stop_reason_;
  std::map<int, v1::Progress> progress_;
  std::map<int, std::deque<v1::StepTime>> steps_;
  std::chrono::nanoseconds asked_for_records_{0};
  std::map<int, LatestReports> latest_;
  std::map<int, double> step_seconds_;
  std::map<int, v1::WaitReport> waiting_;
  std::set<uint64_t> sent_groups_;
  // Ranks that the watchers were told of.
  std::map<int, v1::RankLost> lost_;
  std::set<int> left_;
  // The newest ones, by number: a coordinator repeats them to a host that was away.
  std::map<uint64_t, v1::WaitVerdict> verdicts_;
  // Each with its rank.
  std::map<GenerationWatcher*, int> watchers_;
};

}  // namespace meshrun::worker
