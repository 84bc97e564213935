#include "worker/generations/generations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/log.h"
#include "core/proto_time.h"
#include "core/secret.h"

namespace meshrun::worker {

void Generations::OnSession(std::chrono::nanoseconds lease, const v1::Hello& hello) {
  lease_ = lease;
  named_.clear();
  for (const v1::RunningGeneration& running : hello.running()) {
    if (!running.ended()) named_.insert({running.job_id(), running.generation()});
  }
  for (auto& [key, entry] : entries_) {
    // Hello does not carry pids and progress.
    if (entry.generation->started() && !entry.generation->ended()) SendStarted(key);
    entry.generation->OfferProgressAgain();
    entry.generation->ForgetSentGroups();
    for (const auto& [rank, report] : entry.generation->waiting()) SendWaiting(key, report);
    entry.unsaid = true;
  }
  SendJoined();
  SendProgress();
  // Exits after Hello was written are neither in it nor in a message, since there was no session
  // yet. The coordinator ignores the ones that it knows.
  for (const auto& [key, entry] : entries_) {
    for (const auto& [rank, exit] : entry.generation->Exits()) SendExit(key, exit);
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
  if (message.has_forget() || message.has_stop()) GiveUp(key);
  Entry* const entry = Find(key);
  if (entry == nullptr) {
    HandleAbsent(key, message);
    return;
  }
  Generation& generation = *entry->generation;
  if (message.has_start()) {
    Start(key, message.start());
  } else if (message.has_stop()) {
    log::Info(
        "stopping a generation",
        {{"job", key.first}, {"generation", key.second}, {"reason", message.stop().reason()}});
    StopProcesses(*generation.processes(), FromProto(message.stop().grace()),
                  message.stop().reason(), message.stop().first_signal());
  } else if (message.has_peer_news()) {
    generation.Tell(message.peer_news());
  } else if (message.has_collect_flight_records()) {
    CollectFlightRecords(generation, message.collect_flight_records());
  } else if (message.has_dump()) {
    Dump(generation, message.dump());
  } else if (message.has_collect_stacks()) {
    CollectStacks(generation, message.collect_stacks());
  } else if (message.has_signal_ranks()) {
    SignalRanks(generation, message.signal_ranks());
  } else if (message.has_quiesce()) {
    generation.TellQuiesce(message.quiesce());
  } else if (message.has_forget()) {
    Forget(key);
  }
}

void Generations::HandleAbsent(const Key& key, const v1::OpenSessionResponse& message) {
  const bool is_forget = message.has_forget();
  if (!message.has_start() && !message.has_stop() && !is_forget) return;
  // The coordinator answers GenerationEnded with Forget. So Forget is answered only if Hello said
  // that this generation or an earlier one runs, and only once.
  const size_t named =
      is_forget ? std::erase_if(named_,
                                [&](const Key& other) {
                                  return other.first == key.first && other.second <= key.second;
                                })
                : 0;
  const auto older = key.second > HighestOf(key.first) ? LiveProcesses(key.first) : nullptr;
  if (older == nullptr) {
    // The coordinator must know that nothing runs here.
    if (is_forget && named == 0) return;
    log::Warning("a command for a generation that is not here",
                 {{"job", key.first}, {"generation", key.second}});
    SendEnded(key);
    return;
  }
  log::Info("stopping what a generation that is not here was to follow",
            {{"job", key.first}, {"generation", key.second}});
  uint64_t& ends_as = ends_as_[key.first];
  ends_as = std::max(ends_as, key.second);
  if (message.has_stop()) {
    StopProcesses(*older, FromProto(message.stop().grace()), message.stop().reason(),
                  message.stop().first_signal());
  } else if (message.has_start()) {
    StopProcesses(*older, Find(KeysOf(*older).back())->generation->kill_grace(),
                  fmt::format("generation {}, which follows, is not here", key.second));
  } else if (!older->stopping()) {
    // What was told to end keeps its grace.
    StopProcesses(*older, std::chrono::nanoseconds(0), "the coordinator does not know this job");
  }
}

void Generations::SignalRanks(Generation& generation, const v1::SignalRanks& command) {
  const uint64_t number = generation.fence().generation();
  log::Info(
      "sending ranks a signal",
      {{"job", generation.fence().job_id()}, {"generation", number}, {"signal", command.signal()}});
  std::vector<ProcessName> names;
  for (const v1::RankAssignment& rank : generation.record().prepare().ranks()) {
    const auto& chosen = command.ranks();
    if (chosen.empty() || std::find(chosen.begin(), chosen.end(), rank.rank()) != chosen.end()) {
      names.push_back(NameOf(rank, number));
    }
  }
  generation.processes()->Signal(names, command.signal());
}

void Generations::Forget(const Key& key) {
  Entry& entry = *Find(key);
  const std::shared_ptr<RankProcesses> processes = entry.generation->processes();
  entry.forgotten = true;
  named_.erase(key);
  if (processes->ended()) {
    Drop(key);
    return;
  }
  const std::vector<Key> keys = KeysOf(*processes);
  const bool all = std::all_of(keys.begin(), keys.end(),
                               [this](const Key& other) { return Find(other)->forgotten; });
  if (all) {
    log::Info("killing a generation that the coordinator does not know",
              {{"job", key.first}, {"generation", key.second}});
    StopProcesses(*processes, std::chrono::nanoseconds(0),
                  "the coordinator does not know this job");
  } else if (!entry.generation->started()) {
    // What it was to follow goes on.
    Drop(key);
  }
}

void Generations::Drop(const Key& key) {
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return;
  const std::shared_ptr<RankProcesses> processes = entry->second.generation->processes();
  const uint32_t port = entry->second.generation->record().master_port();
  if (!processes->ended()) {
    if (port != 0) host_.ports.GiveBack(static_cast<uint16_t>(port));
    processes->Erase(entry->second.generation->record(), entry->second.generation->started());
  }
  host_.loop.Cancel(entry->second.saving);
  Answer(key, last_answer_);
  entries_.erase(entry);
  if (!KeysOf(*processes).empty()) return;
  RemoveLater(key.first, processes->directory());
  CloseAgentSocketIfUnused(key.first);
}

void Generations::HoldLogs(RankProcesses& processes, uint64_t generation) {
  const std::string directory = host_.state_dir.LogDirectory(processes.job_id(), generation);
  host_.logs_in_use.Hold(directory);
  processes.logs.insert(directory);
}

void Generations::ReleaseLogs(RankProcesses& processes) {
  for (const std::string& directory : processes.logs) host_.logs_in_use.Release(directory);
}

void Generations::PingAll() {
  const v1::SupervisorPing ping = handler_.ping();
  for (auto& [key, entry] : entries_) entry.generation->processes()->Ping(ping);
}

std::string Generations::DescribeRunning() const {
  std::vector<std::string> running;
  for (const auto& [key, entry] : entries_) {
    if (entry.generation->ended()) continue;
    std::vector<std::string> ranks;
    const auto exits = entry.generation->Exits();
    for (const auto& [rank, pid] : entry.generation->Pids()) {
      if (!exits.contains(rank)) ranks.push_back(fmt::format("rank {} (pid {})", rank, pid));
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
    // What is left of a forgotten one holds what it held until it is gone.
    if (!entry.forgotten || !entry.generation->ended()) {
      out.push_back(entry.generation->Running());
      out.back().set_stopping(entry.forgotten || entry.generation->stopping());
    }
  }
  return out;
}

std::vector<v1::OpenSessionRequest> Generations::Details() const {
  std::vector<v1::OpenSessionRequest> out;
  for (const auto& [key, entry] : entries_) {
    const Generation& generation = *entry.generation;
    if (entry.forgotten || !generation.started() || generation.ended()) continue;
    v1::OpenSessionRequest& message = out.emplace_back();
    message.mutable_fence()->set_job_id(key.first);
    message.mutable_fence()->set_generation(key.second);
    v1::GenerationDetails& details = *message.mutable_generation_details();
    *details.mutable_prepare() = generation.record().prepare();
    *details.mutable_start() = generation.record().start();
  }
  return out;
}

void Generations::RemoveWatcher(GenerationWatcher* watcher) {
  for (auto& [key, entry] : entries_) entry.generation->RemoveWatcher(watcher);
}

absl::StatusOr<Generation*> Generations::Authenticate(const v1::Fence& fence,
                                                      const std::string& token, int rank) {
  Entry* const entry = Find({fence.job_id(), fence.generation()});
  if (entry == nullptr || entry->generation->ended() || !entry->generation->started()) {
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

absl::StatusOr<v1::RegisterRankResponse> Generations::FindSuccessor(const v1::Fence& fence,
                                                                    const std::string& token,
                                                                    int rank) const {
  for (const auto& [key, entry] : entries_) {
    const Generation& later = *entry.generation;
    if (key.first != fence.job_id() || key.second <= fence.generation() || !later.started() ||
        later.ended() || !SameSecret(token, later.record().token())) {
      continue;
    }
    for (const v1::FormerGeneration& former : later.processes()->record().former()) {
      if (former.generation() != fence.generation()) continue;
      for (const v1::RankAssignment& place : former.ranks()) {
        const auto now = later.RankOf(NameOf(place, former.generation()));
        if (place.rank() == rank && now) return later.PlaceOf(*now, host_.facts.node_name);
      }
    }
  }
  return absl::NotFoundError(
      fmt::format("rank {} of generation {} of job {} has no place in a later generation", rank,
                  fence.generation(), fence.job_id()));
}

bool Generations::RankMayWrite(const std::string& job_id, uint64_t generation, int rank) const {
  const ProcessName name = {generation, rank};
  for (auto it = entries_.lower_bound({job_id, 0}); it != entries_.end(); ++it) {
    if (it->first.first != job_id) break;
    const Generation& here = *it->second.generation;
    if (here.ended()) continue;
    if (here.processes()->Runs(name)) return true;
    if (here.RankOf(name) && here.processes()->FindExit(name) == nullptr) return true;
  }
  return false;
}

Generations::Entry* Generations::Find(const Key& key) {
  const auto entry = entries_.find(key);
  return entry == entries_.end() ? nullptr : &entry->second;
}

std::vector<Generations::Key> Generations::KeysOf(const RankProcesses& processes) const {
  std::vector<Key> keys;
  for (auto it = entries_.lower_bound({processes.job_id(), 0}); it != entries_.end(); ++it) {
    if (it->first.first != processes.job_id()) break;
    if (it->second.generation->processes().get() == &processes) keys.push_back(it->first);
  }
  return keys;
}

Generations::Entry* Generations::Current(const RankProcesses& processes) {
  for (const Key& key : KeysOf(processes)) {
    if (Find(key)->generation->started()) return Find(key);
  }
  return nullptr;
}

uint64_t Generations::HighestOf(const std::string& job_id) const {
  auto it = entries_.upper_bound({job_id, ~uint64_t{0}});
  if (it == entries_.begin() || (--it)->first.first != job_id) return 0;
  return it->first.second;
}

std::shared_ptr<RankProcesses> Generations::LiveProcesses(const std::string& job_id) const {
  for (auto it = entries_.lower_bound({job_id, 0}); it != entries_.end(); ++it) {
    if (it->first.first != job_id) break;
    if (!it->second.generation->ended()) return it->second.generation->processes();
  }
  return nullptr;
}

}  // namespace meshrun::worker
