#include "worker/generations/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/job_spec.h"
#include "core/os/boot_time.h"
#include "core/os/routes.h"
#include "core/progress.h"
#include "core/rank_exit.h"
#include "core/wait_messages.h"
#include "worker/supervisor/report.h"

namespace meshrun::worker {
namespace {

std::string GoesOnWithout(uint64_t next) {
  return fmt::format("generation {} of this job goes on without this rank", next);
}

}  // namespace

template <typename Call>
void Generation::TellAll(const Call& call) {
  const auto watchers = watchers_;
  for (const auto& [watcher, rank] : watchers) call(*watcher, rank);
}

void Generation::Start(const v1::Start& start) {
  if (started() || ended()) return;
  *record_.mutable_start() = start;
  if (start.master_addresses_size() > 0) {
    record_.mutable_start()->set_master_addr(
        os::FirstWithRoute({start.master_addresses().begin(), start.master_addresses().end()}));
  }
  // Written first: the ranks may ask a restarted daemon for it.
  processes_->Save(record_, [processes = processes_.get(), record = record_](const absl::Status&) {
    processes->Start(record);
  });
}

void Generation::TellStopping(const std::string& reason) {
  if (ended() || std::exchange(stopping_, true)) return;
  stop_reason_ = reason;
  TellAll([&](GenerationWatcher& watcher, int) { watcher.OnStopping(reason); });
}

void Generation::TakeExit(const v1::RankExit& exit) {
  ClearWaiting(exit.rank());
  // The coordinator tells all ranks of the job. This host's ranks are told here, even while there
  // is no coordinator.
  v1::PeerNews news;
  if (ExitedCleanly(exit)) {
    news.add_left(exit.rank());
  } else {
    v1::RankLost& lost = *news.add_lost();
    lost.set_rank(exit.rank());
    lost.set_reason(PeerEndSentence(exit, /*node_name=*/""));
  }
  Tell(news);
}

void Generation::Tell(const v1::PeerNews& told) {
  v1::PeerNews news = told;
  for (const int rank : told.ended()) {
    v1::RankLost& lost = *news.add_lost();
    lost.set_rank(rank);
    lost.set_reason("it ended after the first failure");
  }
  news.clear_ended();
  for (const v1::RankLost& lost : news.lost()) lost_[lost.rank()] = lost;
  left_.insert(news.left().begin(), news.left().end());
  KeepNewVerdicts(&news);
  TellAll([&](GenerationWatcher& watcher, int) { watcher.OnNews(news); });
}

void Generation::KeepNewVerdicts(v1::PeerNews* news) {
  auto& told = *news->mutable_verdicts();
  told.erase(std::remove_if(told.begin(), told.end(),
                            [this](const v1::WaitVerdict& verdict) {
                              // An older coordinator numbers none, and repeats none.
                              return verdict.number() != 0 &&
                                     !verdicts_.try_emplace(verdict.number(), verdict).second;
                            }),
             told.end());
  // Numbers grow.
  while (verdicts_.size() > kMostVerdicts) verdicts_.erase(verdicts_.begin());
}

std::set<int> Generation::AskForFlightRecords(uint64_t request, uint32_t most_operations) {
  asked_for_records_ = os::BootTimeNow();
  std::set<int> asked;
  TellAll([&](GenerationWatcher& watcher, int rank) {
    asked.insert(rank);
    watcher.OnFlightRecordWanted(request, most_operations);
  });
  return asked;
}

void Generation::TellQuiesce(const v1::Quiesce& quiesce) {
  *record_.mutable_quiesce() = quiesce;
  Save([] {});
  TellAll([&](GenerationWatcher& watcher, int) { watcher.OnQuiesce(quiesce); });
}

void Generation::TellLeftOut(const std::vector<ProcessName>& processes, uint64_t next) {
  TellAll([&](GenerationWatcher& watcher, int rank) {
    const v1::RankAssignment* const place = FindRank(rank);
    if (place != nullptr && std::ranges::count(processes, NameOf(*place, fence().generation())))
      watcher.OnStopping(GoesOnWithout(next));
  });
}

void Generation::HandOver(const Generation& next, const std::string& node_name) {
  const uint64_t generation = fence().generation();
  TellAll([&](GenerationWatcher& watcher, int rank) {
    const v1::RankAssignment* const place = FindRank(rank);
    const auto later = place ? next.RankOf(NameOf(*place, generation)) : std::nullopt;
    if (later) {
      watcher.OnNewGeneration(next.PlaceOf(*later, node_name));
    } else {
      watcher.OnStopping(GoesOnWithout(next.fence().generation()));
      watcher.OnEnded();
    }
  });
}

void Generation::TellEnded() {
  TellAll([](GenerationWatcher& watcher, int) { watcher.OnEnded(); });
}

bool Generation::Join(int rank, bool in_process) {
  v1::RanksJoined& joined = *record_.mutable_joined();
  const auto holds = [rank](const auto& ranks) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  bool changed = false;
  if (!holds(joined.ranks())) {
    joined.add_ranks(rank);
    changed = true;
  }
  if (holds(joined.in_process()) == in_process) return changed;
  if (in_process) {
    joined.add_in_process(rank);
  } else {
    auto& able = *joined.mutable_in_process();
    able.erase(std::remove(able.begin(), able.end(), rank), able.end());
  }
  return true;
}

void Generation::TakeQuiesced(int rank, int64_t step) {
  (*record_.mutable_quiesced()->mutable_steps())[rank] = step;
}

void Generation::Save(std::function<void()> done) {
  processes_->Save(record_, [done = std::move(done)](const absl::Status&) { done(); });
}

std::chrono::nanoseconds Generation::kill_grace() const {
  return KillGrace(record_.prepare().spec());
}

bool Generation::moves_in_process() const {
  const v1::RanksJoined& joined = record_.joined();
  return record_.prepare().spec().max_restarts() > 0 && joined.in_process_size() > 0 &&
         joined.in_process_size() == record_.prepare().ranks_size();
}

const v1::RankAssignment* Generation::FindRank(int rank) const {
  for (const v1::RankAssignment& assignment : record_.prepare().ranks()) {
    if (assignment.rank() == rank) return &assignment;
  }
  return nullptr;
}

std::optional<int> Generation::RankOf(const ProcessName& name) const {
  for (const v1::RankAssignment& assignment : record_.prepare().ranks()) {
    if (NameOf(assignment, fence().generation()) == name) return assignment.rank();
  }
  return std::nullopt;
}

std::map<int, int64_t> Generation::Pids() const {
  std::map<int, int64_t> pids;
  for (const v1::RankAssignment& assignment : record_.prepare().ranks()) {
    const int64_t pid = processes_->PidOf(NameOf(assignment, fence().generation()));
    if (pid > 0) pids[assignment.rank()] = pid;
  }
  return pids;
}

std::map<int, v1::RankExit> Generation::Exits() const {
  std::map<int, v1::RankExit> exits;
  for (const v1::RankAssignment& assignment : record_.prepare().ranks()) {
    const auto* const exit = processes_->FindExit(NameOf(assignment, fence().generation()));
    if (exit == nullptr) continue;
    exits[assignment.rank()] = *exit;
    exits[assignment.rank()].set_rank(assignment.rank());
  }
  return exits;
}

v1::RunningGeneration Generation::Running() const {
  v1::RunningGeneration out;
  out.set_job_id(fence().job_id());
  out.set_generation(fence().generation());
  out.set_ended(ended());
  out.set_started(started());
  *out.mutable_joined() = record_.joined();
  const auto exits = Exits();
  for (const auto& [rank, pid] : Pids()) {
    if (!exits.contains(rank)) out.add_running_ranks(rank);
  }
  for (const auto& [rank, exit] : exits) *out.add_exits() = exit;
  for (const auto& [rank, progress] : progress_) {
    if (progress.has_step()) (*out.mutable_steps())[rank] = progress.step();
  }
  return out;
}

v1::RegisterRankResponse Generation::PlaceOf(int rank, const std::string& node_name) const {
  v1::RegisterRankResponse out;
  *out.mutable_assignment() = *FindRank(rank);
  out.set_world_size(static_cast<int32_t>(record_.prepare().world_size()));
  out.set_local_world_size(record_.prepare().ranks_size());
  out.set_node_count(static_cast<int32_t>(record_.prepare().node_count()));
  *out.mutable_mesh() = record_.prepare().mesh();
  out.set_master_addr(record_.start().master_addr());
  out.set_master_port(record_.start().master_port());
  out.set_node_name(node_name);
  out.mutable_fence()->set_job_id(fence().job_id());
  out.mutable_fence()->set_generation(fence().generation());
  return out;
}

v1::WaitReport Generation::Shorten(v1::WaitReport report) {
  for (v1::WaitCall& call : *report.mutable_calls()) {
    call.set_group_id(GroupId(call));
    if (sent_groups_.insert(call.group_id()).second) continue;
    call.clear_members();
    call.clear_member_rows();
  }
  return report;
}

void Generation::KeepSteps(int rank, const v1::ProcessProgress& progress) {
  for (const v1::StepTime& step : progress.steps()) KeepStep(step, &steps_[rank]);
}

const std::deque<v1::StepTime>& Generation::StepsOf(int rank) const {
  static const std::deque<v1::StepTime> kNone;
  const auto found = steps_.find(rank);
  return found == steps_.end() ? kNone : found->second;
}

void Generation::MergeRankProgress(int rank, const v1::Progress& progress) {
  v1::Progress& known = progress_[rank];
  const bool had_step = known.has_step() && known.has_step_at_nanos();
  const int64_t step = known.step();
  const int64_t at = known.step_at_nanos();
  MergeProgress(progress, &known);
  if (had_step && known.has_step_at_nanos() && known.step() > step && known.step_at_nanos() > at) {
    step_seconds_[rank] = static_cast<double>(known.step_at_nanos() - at) * 1e-9 /
                          static_cast<double>(known.step() - step);
  }
  latest_[rank].Add(progress, known);
}

std::optional<double> Generation::StepSeconds(int rank) const {
  const auto found = step_seconds_.find(rank);
  if (found == step_seconds_.end()) return std::nullopt;
  return found->second;
}

std::vector<v1::ProgressReport> Generation::TakeProgress() {
  std::vector<v1::ProgressReport> reports;
  for (auto& [rank, latest] : latest_) {
    std::vector<v1::Progress> steps = latest.TakeUnsent();
    if (reports.size() < steps.size()) reports.resize(steps.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      (*reports[i].mutable_progress())[rank] = std::move(steps[i]);
    }
  }
  return reports;
}

void Generation::OfferProgressAgain() {
  for (auto& [rank, latest] : latest_) latest.OfferAgain();
}

void Generation::AddWatcher(GenerationWatcher* watcher, int rank) {
  watchers_[watcher] = rank;
  if (!lost_.empty() || !left_.empty() || !verdicts_.empty()) {
    v1::PeerNews past;
    for (const auto& [lost_rank, lost] : lost_) *past.add_lost() = lost;
    past.mutable_left()->Add(left_.begin(), left_.end());
    for (const auto& [number, verdict] : verdicts_) *past.add_verdicts() = verdict;
    watcher->OnNews(past);
  }
  if (record_.has_quiesce()) watcher->OnQuiesce(record_.quiesce());
  if (stopping_) watcher->OnStopping(stop_reason_);
  if (ended()) watcher->OnEnded();
}

}  // namespace meshrun::worker
