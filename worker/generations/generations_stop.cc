// How ranks are stopped: one job's processes, or all on this host.
#include <algorithm>
#include <map>
#include <memory>

#include "core/log.h"
#include "worker/generations/generations.h"

namespace meshrun::worker {

void Generations::StopProcesses(RankProcesses& processes, std::chrono::nanoseconds grace,
                                const std::string& reason, int first_signal) {
  for (const Key& key : KeysOf(processes)) Find(key)->generation->TellStopping(reason);
  processes.Stop(grace, first_signal);
}

void Generations::StopAllAfterTheyMoved(const std::string& reason) {
  GiveUpPreparing();
  std::map<std::shared_ptr<RankProcesses>, std::chrono::nanoseconds> all;
  for (auto& [key, entry] : entries_) {
    auto& grace = all[entry.generation->processes()];
    grace = std::max(grace, entry.generation->kill_grace());
  }
  for (const auto& [processes, grace] : all) {
    const Entry* const current = Current(*processes);
    if (current == nullptr || !current->generation->moves_in_process()) {
      StopProcesses(*processes, grace, reason);
      continue;
    }
    host_.loop.After(grace / 2, [this, weak = std::weak_ptr<RankProcesses>(processes),
                                 left = grace - grace / 2, reason] {
      const auto late = weak.lock();
      if (late == nullptr || late->ended()) return;
      log::Info("ranks were not moved in time: stopping them", {{"job", late->job_id()}});
      StopProcesses(*late, left, reason);
    });
  }
}

void Generations::GiveUpPreparing() {
  deferred_.clear();
  while (!preparing_.empty()) GiveUp(preparing_.begin()->first);
}

void Generations::StopAll(std::optional<std::chrono::nanoseconds> grace,
                          const std::string& reason) {
  GiveUpPreparing();
  for (auto& [key, entry] : entries_) {
    const auto own = entry.generation->kill_grace();
    StopProcesses(*entry.generation->processes(), grace ? std::min(*grace, own) : own, reason);
  }
}

bool Generations::MarkOrphaned() {
  bool any = false;
  for (auto& [key, entry] : entries_) {
    if (!entry.generation->started() || entry.generation->ended()) continue;
    if (entry.generation->processes()->MarkOrphaned()) any = true;
  }
  return any;
}

void Generations::KillAll(const std::string& reason) {
  for (auto& [key, entry] : entries_) {
    if (entry.generation->ended()) continue;
    entry.generation->TellStopping(reason);
    entry.generation->processes()->KillNow();
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

}  // namespace meshrun::worker
