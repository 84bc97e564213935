// How a daemon that is started again takes over what an earlier incarnation left.
#include <algorithm>
#include <utility>

#include "core/log.h"
#include "core/os/files.h"
#include "worker/generations/generations.h"
#include "worker/pictures/picture_paths.h"

namespace meshrun::worker {
namespace {

constexpr std::chrono::seconds kAdoptionTimeout(2);

}  // namespace

void Generations::Adopt(std::function<void()> on_done) {
  on_adopted_ = std::move(on_done);
  for (const std::string& directory : host_.state_dir.GenerationDirectories()) {
    auto processes = RankProcesses::Adopt(host_.loop, host_.files, directory, ProcessesHandler());
    if (!processes.ok()) {
      log::Warning("removing what is left of rank processes",
                   {{"directory", directory}, {"error", processes.status()}});
      (void)os::RemoveTree(directory);
      continue;
    }
    const std::string& job_id = (*processes)->job_id();
    for (const v1::GenerationRecord& record : (*processes)->record().generations()) {
      const Key key = {job_id, record.fence().generation()};
      if (record.master_port() != 0) host_.ports.Keep(static_cast<uint16_t>(record.master_port()));
      log::Info("adopting a generation", {{"job", key.first}, {"generation", key.second}});
      for (const v1::RankAssignment& rank : record.prepare().ranks())
        HoldLogs(**processes, NameOf(rank, key.second).generation);
      entries_[key] = {.generation = std::make_unique<Generation>(record, *processes),
                       .announced = true};
    }
    if (const absl::Status open = OpenAgentSocket(job_id); !open.ok()) {
      log::Warning("the ranks of a job cannot reach this daemon",
                   {{"job", job_id}, {"error", open}});
    }
  }
  std::set<std::string> groups;
  for (const auto& [key, entry] : entries_) {
    for (const auto& hierarchy : entry.generation->processes()->record().cgroup().hierarchies())
      groups.insert(hierarchy.directory());
  }
  host_.cgroups.RemoveOthers(host_.state_dir.node_id(), groups);
  std::set<std::string> in_use;
  for (const auto& [job, socket] : agent_sockets_) in_use.insert(host_.state_dir.JobDirectory(job));
  for (const std::string& directory : host_.state_dir.JobDirectories()) {
    if (in_use.contains(directory)) continue;
    KeepPictures(directory, "");
    (void)os::RemoveTree(directory);
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
  // The record of a start may be older than the removal of the generations before it.
  std::vector<Key> started;
  for (const auto& [key, entry] : entries_) {
    if (entry.generation->started()) started.push_back(key);
  }
  for (const Key& key : started) {
    if (Find(key) != nullptr) Supersede(key);
  }
  std::exchange(on_adopted_, nullptr)();
}

std::optional<std::chrono::nanoseconds> Generations::InheritedContact() const {
  std::optional<std::chrono::nanoseconds> earliest;
  for (const auto& [key, entry] : entries_) {
    const RankProcesses& processes = *entry.generation->processes();
    if (processes.ended() || !processes.inherited_ping().has_good_for()) continue;
    const std::chrono::nanoseconds at(processes.inherited_ping().since_boottime_nanos());
    earliest = std::min(earliest.value_or(at), at);
  }
  return earliest;
}

}  // namespace meshrun::worker
