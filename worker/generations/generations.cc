#include "worker/generations/generations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/log.h"
#include "core/os/files.h"
#include "core/proto_time.h"
#include "core/rank_exit.h"
#include "core/secret.h"

namespace meshrun::worker {
namespace {

// Progress is passed on at most five times a second.
constexpr std::chrono::milliseconds kProgressInterval(200);
constexpr std::chrono::seconds kAdoptionTimeout(2);

}  // namespace

void Generations::Adopt(std::function<void()> on_done) {
  on_adopted_ = std::move(on_done);
  for (const std::string& directory : host_.state_dir.GenerationDirectories()) {
    // Its key stands in its record.
    auto key = std::make_shared<Key>();
    Generation::Handler handler = {
        .on_prepared = [this, key] { OnPrepared(*key); },
        .on_unprepared = [this, key](const v1::ProgramFound& why) { OnUnprepared(*key, why); },
        .on_started = [this, key] { OnStarted(*key); },
        .on_exit = [this, key](const v1::RankExit& exit) { OnExit(*key, exit); },
        .on_ended = [this, key] { OnEnded(*key); },
        .on_progress = [this] { ScheduleProgress(); },
    };
    auto generation = Generation::Adopt(host_.loop, host_.files, directory, std::move(handler));
    if (!generation.ok()) {
      log::Warning("removing what is left of a generation",
                   {{"directory", directory}, {"error", generation.status()}});
      (void)os::RemoveTree(directory);
      continue;
    }
    *key = {(*generation)->fence().job_id(), (*generation)->fence().generation()};
    const uint32_t port = (*generation)->record().master_port();
    if (port != 0) host_.ports.Keep(static_cast<uint16_t>(port));
    host_.logs_in_use.Hold(host_.state_dir.LogDirectory(key->first, key->second));
    log::Info("adopting a generation", {{"job", key->first}, {"generation", key->second}});
    entries_[*key] = {.generation = *std::move(generation), .announced = true};
    if (const absl::Status open = OpenAgentSocket(key->first); !open.ok()) {
      log::Warning("the ranks of a job cannot reach this daemon",
                   {{"job", key->first}, {"error", open}});
    }
  }
  std::set<std::string> in_use;
  for (const auto& [job, socket] : agent_sockets_) in_use.insert(host_.state_dir.JobDirectory(job));
  for (const std::string& directory : host_.state_dir.JobDirectories()) {
    if (!in_use.contains(directory)) (void)os::RemoveTree(directory);
  }
  host_.loop.After(kAdoptionTimeout, [this] {
    if (on_adopted_) std::exchange(on_adopted_, nullptr)();
  });
  host_.loop.Post([this] { FinishAdoption(); });
}

void Generations::FinishAdoption() {
  if (!on_adopted_) return;
  for (const auto& [key, entry] : entries_) {
    if (!entry.generation->prepared() && !entry.generation->ended()) return;
  }
  std::exchange(on_adopted_, nullptr)();
}

void Generations::OnSession(std::chrono::nanoseconds lease) {
  lease_ = lease;
  for (auto& [key, entry] : entries_) {
    // Hello does not carry pids and progress.
    if (!entry.generation->pids().empty() && !entry.generation->ended()) OnStarted(key);
    entry.generation->OfferProgressAgain();
    for (const auto& [rank, report] : entry.generation->waiting()) SendWaiting(key, report);
  }
  SendProgress();
  // Exits after Hello was written are neither in it nor in a message, since there was no session
  // yet. The coordinator ignores the ones that it knows.
  for (const auto& [key, entry] : entries_) {
    for (const auto& [rank, exit] : entry.generation->exits()) SendExit(key, exit);
    if (entry.generation->ended()) SendEnded(key);
  }
}

void Generations::Handle(const v1::OpenSessionResponse& message) {
  const v1::Fence& fence = message.fence();
  const Key key = {fence.job_id(), fence.generation()};
  if (message.has_prepare()) {
    Prepare(fence, message.prepare());
    return;
  }
  Entry* const entry = Find(key);
  if (message.has_stop() || message.has_forget()) GiveUp(key);
  if (entry == nullptr) {
    if (message.has_forget() || message.has_peer_news() || message.has_collect_flight_records()) {
      return;
    }
    // The coordinator must know that nothing runs here.
    log::Warning("a command for a generation that is not here",
                 {{"job", key.first}, {"generation", key.second}});
    SendEnded(key);
    return;
  }
  Generation& generation = *entry->generation;
  if (message.has_start()) {
    if (generation.ended()) {
      SendEnded(key);
    } else {
      generation.Start(message.start());
    }
  } else if (message.has_stop()) {
    log::Info(
        "stopping a generation",
        {{"job", key.first}, {"generation", key.second}, {"reason", message.stop().reason()}});
    generation.Stop(FromProto(message.stop().grace()), message.stop().reason());
  } else if (message.has_peer_news()) {
    generation.Tell(message.peer_news());
  } else if (message.has_collect_flight_records()) {
    generation.AskForFlightRecords(message.collect_flight_records().request());
  } else if (message.has_forget()) {
    entry->forgotten = true;
    if (generation.ended()) {
      Drop(key);
    } else {
      log::Info("killing a generation that the coordinator does not know",
                {{"job", key.first}, {"generation", key.second}});
      generation.Stop(std::chrono::nanoseconds(0), "the coordinator does not know this job");
    }
  }
}

Generation::Handler Generations::HandlerFor(const Key& key) {
  return {
      .on_prepared = [this, key] { OnPrepared(key); },
      .on_unprepared = [this, key](const v1::ProgramFound& why) { OnUnprepared(key, why); },
      .on_started = [this, key] { OnStarted(key); },
      .on_exit = [this, key](const v1::RankExit& exit) { OnExit(key, exit); },
      .on_ended = [this, key] { OnEnded(key); },
      .on_progress = [this] { ScheduleProgress(); },
  };
}

void Generations::OnPrepared(const Key& key) {
  if (on_adopted_) {
    FinishAdoption();
    return;
  }
  if (Entry* const entry = Find(key); entry != nullptr && !entry->announced) AnswerPrepare(key);
}

void Generations::OnStarted(const Key& key) {
  Entry& entry = *Find(key);
  v1::OpenSessionRequest message;
  for (const auto& [rank, pid] : entry.generation->pids()) {
    (*message.mutable_ranks_started()->mutable_pids())[rank] = pid;
  }
  Send(key, std::move(message));
}

void Generations::OnExit(const Key& key, const v1::RankExit& exit) {
  log::Info("a rank has ended", {{"job", key.first},
                                 {"generation", key.second},
                                 {"rank", exit.rank()},
                                 {"end", DescribeEnd(exit)},
                                 {"teardown", exit.teardown()}});
  // Its last progress is sent before its end.
  SendProgress();
  SendExit(key, exit);
  handler_.on_rank_ended(key.first, key.second, exit.rank());
}

void Generations::OnEnded(const Key& key) {
  Entry* const entry = Find(key);
  if (entry == nullptr) return;
  log::Info("a generation has ended on this host",
            {{"job", key.first}, {"generation", key.second}});
  SendProgress();
  SendEnded(key);
  if (const uint32_t port = entry->generation->record().master_port(); port != 0) {
    host_.ports.GiveBack(static_cast<uint16_t>(port));
  }
  for (const v1::RankAssignment& rank : entry->generation->record().prepare().ranks()) {
    handler_.on_rank_ended(key.first, key.second, rank.rank());
  }
  host_.logs_in_use.Release(host_.state_dir.LogDirectory(key.first, key.second));
  handler_.on_generation_ended(key.first, key.second);
  // Not from within the generation's own call.
  if (entry->forgotten) host_.loop.Post([this, key] { Drop(key); });
  if (on_adopted_) FinishAdoption();
}

void Generations::Drop(const Key& key) {
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return;
  const std::string directory = entry->second.generation->directory();
  entries_.erase(entry);
  RemoveLater(key.first, directory);
  CloseAgentSocketIfUnused(key.first);
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

void Generations::SendWaiting(const Key& key, const v1::WaitReport& report) {
  v1::OpenSessionRequest message;
  *message.mutable_wait_report() = report;
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

void Generations::ScheduleProgress() {
  if (progress_scheduled_) return;
  progress_scheduled_ = true;
  host_.loop.After(kProgressInterval, [this] {
    progress_scheduled_ = false;
    SendProgress();
  });
}

void Generations::SendProgress() {
  for (auto& [key, entry] : entries_) {
    auto report = entry.generation->TakeProgress();
    if (!report) continue;
    v1::OpenSessionRequest message;
    *message.mutable_progress_report() = *std::move(report);
    Send(key, std::move(message));
  }
}

void Generations::PingAll() {
  for (auto& [key, entry] : entries_) entry.generation->Ping();
}

void Generations::StopAll(std::optional<std::chrono::nanoseconds> grace,
                          const std::string& reason) {
  while (!preparing_.empty()) GiveUp(preparing_.begin()->first);
  for (auto& [key, entry] : entries_) {
    entry.generation->Stop(grace.value_or(entry.generation->kill_grace()), reason);
  }
}

bool Generations::AllEnded() const {
  if (!preparing_.empty()) return false;
  for (const auto& [key, entry] : entries_) {
    if (!entry.generation->ended()) return false;
  }
  return true;
}

std::chrono::nanoseconds Generations::LongestKillGrace() const {
  std::chrono::nanoseconds longest(0);
  for (const auto& [key, entry] : entries_) {
    if (!entry.generation->ended()) longest = std::max(longest, entry.generation->kill_grace());
  }
  return longest;
}

std::string Generations::DescribeRunning() const {
  std::vector<std::string> running;
  for (const auto& [key, entry] : entries_) {
    if (entry.generation->ended()) continue;
    std::vector<std::string> ranks;
    const v1::RunningGeneration now = entry.generation->Running();
    for (const int rank : now.running_ranks()) {
      ranks.push_back(fmt::format("rank {} (pid {})", rank, entry.generation->pids().at(rank)));
    }
    running.push_back(fmt::format("generation {} of {}: {}", key.second, key.first,
                                  ranks.empty() ? "no rank, but a process that one of them started"
                                                : fmt::to_string(fmt::join(ranks, ", "))));
  }
  return fmt::to_string(fmt::join(running, "; "));
}

std::vector<v1::RunningGeneration> Generations::Running() const {
  std::vector<v1::RunningGeneration> out;
  for (const auto& [key, entry] : entries_) {
    if (!entry.forgotten) out.push_back(entry.generation->Running());
  }
  return out;
}

absl::StatusOr<Generation*> Generations::Authenticate(const v1::Fence& fence,
                                                      const std::string& token, int rank) {
  Entry* const entry = Find({fence.job_id(), fence.generation()});
  if (entry == nullptr || entry->generation->ended()) {
    for (const auto& [key, other] : entries_) {
      if (key.first == fence.job_id() && key.second > fence.generation()) {
        return absl::FailedPreconditionError(
            fmt::format("generation {} of job {} is over: the current one is {}",
                        fence.generation(), key.first, key.second));
      }
    }
    return absl::NotFoundError(fmt::format("generation {} of job {} does not run on {}",
                                           fence.generation(), fence.job_id(),
                                           host_.facts.node_name));
  }
  if (!SameSecret(token, entry->generation->record().token())) {
    return absl::UnauthenticatedError(fmt::format("wrong MESHRUN_TOKEN for generation {} of job {}",
                                                  fence.generation(), fence.job_id()));
  }
  if (rank >= 0 && entry->generation->FindRank(rank) == nullptr) {
    return absl::NotFoundError(fmt::format("rank {} of generation {} of job {} does not run on {}",
                                           rank, fence.generation(), fence.job_id(),
                                           host_.facts.node_name));
  }
  return entry->generation.get();
}

bool Generations::RankMayWrite(const std::string& job_id, uint64_t generation, int rank) const {
  const auto entry = entries_.find({job_id, generation});
  return entry != entries_.end() && entry->second.generation->RankMayWrite(rank);
}

Generations::Entry* Generations::Find(const Key& key) {
  const auto entry = entries_.find(key);
  return entry == entries_.end() ? nullptr : &entry->second;
}

void Generations::Send(const Key& key, v1::OpenSessionRequest message) {
  const Entry* const entry = Find(key);
  if (entry != nullptr && entry->forgotten) return;
  message.mutable_fence()->set_job_id(key.first);
  message.mutable_fence()->set_generation(key.second);
  handler_.send(std::move(message));
}

}  // namespace meshrun::worker
