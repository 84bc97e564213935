// What this host's generations report to the coordinator.
#include <iterator>
#include <utility>

#include "core/log.h"
#include "core/rank_exit.h"
#include "worker/generations/generations.h"

namespace meshrun::worker {
namespace {

// Progress is passed on at most five times a second.
constexpr std::chrono::milliseconds kProgressInterval(200);
// Ranks of a host register within a moment: one message for all.
constexpr std::chrono::milliseconds kJoinedInterval(5);

}  // namespace

RankProcesses::Handler Generations::ProcessesHandler() {
  return {
      .on_ready = [this](RankProcesses& processes) { OnReady(processes); },
      .on_unready = [this](RankProcesses& processes,
                           const v1::ProgramFound& why) { OnUnready(processes, why); },
      .on_started = [this](RankProcesses& processes,
                           uint64_t generation) { OnStarted(processes, generation); },
      .on_exit = [this](RankProcesses& processes, const ProcessName& name,
                        const v1::RankExit& exit) { OnExit(processes, name, exit); },
      .on_progress =
          [this](RankProcesses& processes, const ProcessName& name,
                 const v1::ProcessProgress& progress) { OnProgress(processes, name, progress); },
      .on_ended = [this](RankProcesses& processes) { OnEnded(processes); },
  };
}

void Generations::OnReady(RankProcesses& processes) {
  if (on_adopted_) {
    FinishAdoption();
    return;
  }
  for (const Key& key : KeysOf(processes)) {
    if (!Find(key)->announced) AnswerPrepare(key);
  }
}

void Generations::OnUnready(RankProcesses& processes, const v1::ProgramFound& why) {
  // Its supervisor ends at once, unless a file system holds the search.
  processes.Discard();
  ReleaseLogs(processes);
  for (const Key& key : KeysOf(processes)) {
    const Generation& generation = *Find(key)->generation;
    RefusePrepare(generation.fence(), absl::NotFoundError(why.error()), why.bad_command());
    host_.ports.GiveBack(static_cast<uint16_t>(generation.record().master_port()));
    // Not from within the processes' own call.
    host_.loop.Post([this, key] { Drop(key); });
  }
  SendEndsAs(processes.job_id());
  if (on_adopted_) host_.loop.Post([this] { FinishAdoption(); });
}

void Generations::OnStarted(RankProcesses& processes, uint64_t generation) {
  if (Find({processes.job_id(), generation}) != nullptr) {
    SendStarted({processes.job_id(), generation});
  } else {
    // Another generation has followed meanwhile.
    StopLeftOut(processes);
  }
}

void Generations::SendStarted(const Key& key) {
  v1::OpenSessionRequest message;
  for (const auto& [rank, pid] : Find(key)->generation->Pids()) {
    (*message.mutable_ranks_started()->mutable_pids())[rank] = pid;
  }
  if (message.has_ranks_started()) Send(key, std::move(message));
}

void Generations::OnExit(RankProcesses& processes, const ProcessName& name,
                         const v1::RankExit& exit) {
  const std::string& job_id = processes.job_id();
  log::Info("a rank has ended", {{"job", job_id},
                                 {"generation", name.generation},
                                 {"rank", name.rank},
                                 {"end", DescribeEnd(exit)},
                                 {"teardown", exit.teardown()}});
  // Its last progress is sent before its end.
  SendProgress();
  // The end counts for the running generation, and for the one that was to follow.
  for (const Key& key : KeysOf(processes)) {
    Generation& generation = *Find(key)->generation;
    const auto rank = generation.RankOf(name);
    if (!rank) continue;
    v1::RankExit now = exit;
    now.set_rank(*rank);
    if (generation.started()) generation.TakeExit(now);
    SendExit(key, now);
  }
  handler_.on_rank_ended(job_id, name.generation, name.rank);
  // Not from within the processes' own call.
  if (deferred_.contains(job_id)) host_.loop.Post([this, job_id] { PrepareDeferred(job_id); });
}

void Generations::OnProgress(RankProcesses& processes, const ProcessName& name,
                             const v1::ProcessProgress& progress) {
  Entry* const entry = Current(processes);
  const auto rank = entry ? entry->generation->RankOf(name) : std::nullopt;
  if (!rank) return;
  entry->generation->KeepSteps(*rank, progress);
  ReportProgress(*entry->generation, *rank, progress.progress());
}

void Generations::ReportProgress(Generation& generation, int rank, const v1::Progress& progress) {
  generation.MergeRankProgress(rank, progress);
  ScheduleProgress();
}

std::vector<RunningRank> Generations::RunningRanks() const {
  std::vector<RunningRank> out;
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    const Generation& generation = *it->second.generation;
    if (!generation.started() || generation.ended()) continue;
    // Those of an earlier generation live on in the next one of their job.
    const auto next = std::next(it);
    if (next != entries_.end() && next->first.first == it->first.first &&
        next->second.generation->started()) {
      continue;
    }
    const std::map<int, v1::RankExit> exits = generation.Exits();
    for (const v1::RankAssignment& rank : generation.record().prepare().ranks()) {
      if (exits.contains(rank.rank())) continue;
      RunningRank& running = out.emplace_back();
      running.job_id = it->first.first;
      const ProcessName process = NameOf(rank, it->first.second);
      running.process = {process.generation, process.rank};
      running.rank = rank.rank();
      running.user = generation.record().prepare().submitter();
      if (const auto said = generation.progress().find(rank.rank());
          said != generation.progress().end()) {
        running.progress = said->second;
      }
      running.step_seconds = generation.StepSeconds(rank.rank());
    }
  }
  return out;
}

void Generations::OnEnded(RankProcesses& processes) {
  const std::string job_id = processes.job_id();
  SendProgress();
  uint64_t newest = 0;
  std::vector<Key> forgotten;
  for (const Key& key : KeysOf(processes)) {
    Entry& entry = *Find(key);
    log::Info("a generation has ended on this host",
              {{"job", key.first}, {"generation", key.second}});
    entry.generation->TellEnded();
    Answer(key, last_answer_);
    SendEnded(key);
    if (const uint32_t port = entry.generation->record().master_port(); port != 0) {
      host_.ports.GiveBack(static_cast<uint16_t>(port));
    }
    for (const v1::RankAssignment& rank : entry.generation->record().prepare().ranks()) {
      const ProcessName name = NameOf(rank, key.second);
      newest = std::max(newest, name.generation);
      handler_.on_rank_ended(key.first, name.generation, name.rank);
    }
    if (entry.forgotten) forgotten.push_back(key);
  }
  SendEndsAs(job_id);
  ReleaseLogs(processes);
  handler_.on_generation_ended(job_id, newest);
  // Not from within the processes' own call.
  host_.loop.Post([this, job_id, forgotten] {
    for (const Key& key : forgotten) Drop(key);
    PrepareDeferred(job_id);
  });
  if (on_adopted_) FinishAdoption();
}

void Generations::SendExit(const Key& key, const v1::RankExit& exit) {
  v1::OpenSessionRequest message;
  *message.mutable_rank_exit() = exit;
  Send(key, std::move(message));
}

void Generations::SendEnded(const Key& key) {
  v1::OpenSessionRequest message;
  message.mutable_generation_ended();
  Send(key, std::move(message));
}

void Generations::SendEndsAs(const std::string& job_id) {
  if (const auto ends_as = ends_as_.extract(job_id)) SendEnded({job_id, ends_as.mapped()});
}

void Generations::SendWaiting(const Key& key, const v1::WaitReport& report) {
  v1::OpenSessionRequest message;
  *message.mutable_wait_report() = Find(key)->generation->Shorten(report);
  Send(key, std::move(message));
}

void Generations::ReportWait(Generation& generation, const v1::WaitReport& report) {
  generation.SetWaiting(report);
  SendWaiting({generation.fence().job_id(), generation.fence().generation()}, report);
}

void Generations::WithdrawWait(Generation& generation, int rank) {
  generation.ClearWaiting(rank);
  v1::OpenSessionRequest message;
  message.mutable_wait_withdrawn()->set_rank(rank);
  Send({generation.fence().job_id(), generation.fence().generation()}, std::move(message));
}

void Generations::Join(Generation& generation, int rank, bool in_process,
                       std::function<void()> answer) {
  const Key key = {generation.fence().job_id(), generation.fence().generation()};
  // Said again by a rank that has waited in vain: what it said first may not be written yet.
  const bool known = !generation.Join(rank, in_process);
  if (known && Find(key)->answers.empty()) return answer();
  SaveJoined(key, std::move(answer));
}

void Generations::ReportQuiesced(Generation& generation, int rank, int64_t step,
                                 std::function<void()> answer) {
  generation.TakeQuiesced(rank, step);
  SaveJoined({generation.fence().job_id(), generation.fence().generation()}, std::move(answer));
}

void Generations::SaveJoined(const Key& key, std::function<void()> answer) {
  Entry& changed = *Find(key);
  changed.unsaid = true;
  changed.answers[++last_answer_] = std::move(answer);
  if (std::exchange(joined_scheduled_, true)) return;
  host_.loop.After(kJoinedInterval, [this] {
    joined_scheduled_ = false;
    for (auto& [unsaid, entry] : entries_) {
      if (entry.answers.empty() || entry.generation->ended()) continue;
      const Key key = unsaid;
      const uint64_t last = last_answer_;
      entry.generation->Save([this, key, last] { Answer(key, last); });
      host_.loop.After(host_.file_timeout, [this, key, last] {
        if (!Answer(key, last)) return;
        log::Warning("ranks are answered before their record is written",
                     {{"job", key.first},
                      {"error", Silent(Find(key)->generation->processes()->directory())}});
      });
    }
    SendJoined();
  });
}

bool Generations::Answer(const Key& key, uint64_t last) {
  Entry* const entry = Find(key);
  bool any = false;
  while (entry != nullptr && !entry->answers.empty() && entry->answers.begin()->first <= last) {
    entry->answers.extract(entry->answers.begin()).mapped()();
    any = true;
  }
  return any;
}

void Generations::SendJoined() {
  for (auto& [key, entry] : entries_) {
    if (!std::exchange(entry.unsaid, false)) continue;
    const v1::GenerationRecord& record = entry.generation->record();
    if (record.joined().ranks_size() > 0) {
      v1::OpenSessionRequest message;
      *message.mutable_ranks_joined() = record.joined();
      Send(key, std::move(message));
    }
    if (record.quiesced().steps_size() > 0) {
      v1::OpenSessionRequest message;
      *message.mutable_ranks_quiesced() = record.quiesced();
      Send(key, std::move(message));
    }
  }
}

void Generations::ScheduleProgress() {
  if (std::exchange(progress_scheduled_, true)) return;
  host_.loop.After(kProgressInterval, [this] {
    progress_scheduled_ = false;
    SendProgress();
  });
}

void Generations::SendProgress() {
  for (auto& [key, entry] : entries_) {
    std::vector<v1::ProgressReport> reports = entry.generation->TakeProgress();
    for (v1::ProgressReport& report : reports) {
      v1::OpenSessionRequest message;
      *message.mutable_progress_report() = std::move(report);
      Send(key, std::move(message));
    }
  }
}

void Generations::Send(const Key& key, v1::OpenSessionRequest message) {
  const Entry* const entry = Find(key);
  // The coordinator asks only whether a generation that it has forgotten is gone.
  if (entry != nullptr && entry->forgotten && !message.has_generation_ended()) return;
  message.mutable_fence()->set_job_id(key.first);
  message.mutable_fence()->set_generation(key.second);
  handler_.send(std::move(message));
}

}  // namespace meshrun::worker
