// The part of a host that outlives its daemon: supervisors and ranks.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "tests/coordinator/simulation/host.h"
#include "tests/coordinator/simulation/world.h"

namespace meshrun::coordinator::simulation {
namespace {

// Processes that a rank has left behind are killed after so long.
constexpr nanoseconds kLinger = seconds(5);

}  // namespace

void Host::LaterOnHost(nanoseconds own_span, std::function<void()> run) {
  world_.timeline.After(options_.clock.TrueSpan(own_span),
                        [this, boot = boot_, run = std::move(run)] {
                          if (boot == boot_ && powered_) run();
                        });
}

std::vector<const RankProcess*> Host::LiveRanks() const {
  std::vector<const RankProcess*> out;
  for (const auto& [number, process] : processes_) {
    if (!process.exited) out.push_back(&process);
  }
  return out;
}

RankProcess* Host::Find(uint64_t process) {
  const auto it = processes_.find(process);
  return it == processes_.end() || it->second.exited ? nullptr : &it->second;
}

void Host::StopProcess(RankProcess& process, nanoseconds grace) {
  if (process.exited || process.killed) return;
  const uint64_t number = process.number;
  // Some ranks do not listen.
  if (!std::exchange(process.stop_sent, true) && grace.count() > 0 && !world_.random.OneIn(6)) {
    LaterOnHost(world_.random.Between(milliseconds(1), seconds(2)), [this, number] {
      if (world_.timeline.now() >= ranks_kept_until_) Exit(number, 0, SIGTERM);
    });
  }
  if (grace.count() == 0) {
    Kill(number);
  } else {
    LaterOnHost(grace, [this, number] { Kill(number); });
  }
}

void Host::Kill(uint64_t process) {
  RankProcess* const rank = Find(process);
  if (rank == nullptr || std::exchange(rank->killed, true)) return;
  rank->stop_sent = true;
  // It does not die at once, and computes nothing any more.
  world_.ledger.OnSilenced(process);
  const nanoseconds asleep = std::max(nanoseconds(0), ranks_kept_until_ - world_.timeline.now());
  LaterOnHost(asleep + world_.random.Between(milliseconds(1), milliseconds(60)),
              [this, process] { Exit(process, 0, SIGKILL); });
}

void Host::Exit(uint64_t process, int code, int signal) {
  RankProcess* const rank = Find(process);
  if (rank == nullptr) return;
  rank->exited = true;
  world_.ledger.OnSilenced(process);
  rank->exit.set_rank(rank->rank);
  rank->exit.set_exit_code(code);
  rank->exit.set_signal(signal);
  rank->exit.set_teardown(rank->stop_sent);
  rank->exit.set_at_unix_nanos(options_.clock.Wall(world_.timeline.now()).count());
  rank->exit.set_process_generation(rank->process_generation);
  rank->exit.set_process_rank(rank->process_rank);
  if (world_.timeline.notes_wanted()) {
    world_.timeline.Note(fmt::format("{}: rank {} of {}/{} ends, code {} signal {}", options_.name,
                                     rank->rank, rank->job_id, rank->generation, code, signal));
  }
  SendExit(*rank);
  // A process that a rank has started may live a little longer, and holds what the rank held.
  const bool lingers = !rank->killed && world_.random.OneIn(6);
  LaterOnHost(lingers ? world_.random.Between(milliseconds(100), kLinger) : milliseconds(1),
              [this, process] { OnGone(process); });
}

void Host::OnGone(uint64_t process) {
  RankProcess& rank = processes_.at(process);
  rank.gone = true;
  world_.ledger.OnGone(process, node_id(), rank.job_id);
  CheckEnded(rank.job_id);
}

// A generation has ended here when it was started or told to stop, and nothing of it or of earlier
// ones is left.
void Host::CheckEnded(const std::string& job_id) {
  for (auto it = runs_.lower_bound({job_id, 0}); it != runs_.end() && it->first.first == job_id;) {
    const auto at = it++;
    Run& run = at->second;
    if (run.ended || (!run.started && !run.stopping) || HasProcesses(at->first)) continue;
    run.ended = true;
    SendEnded({job_id, std::max(at->first.second, run.ends_as)});
    if (run.forgotten) runs_.erase(at);
  }
  ForgetGone(job_id);
  WhenAwake([this] { EndWhenQuiet(); });
}

// Forgets the processes of generations that are not here any more: nobody asks about them.
void Host::ForgetGone(const std::string& job_id) {
  if (Newest(job_id) != runs_.end()) return;
  std::erase_if(processes_, [&](const auto& entry) {
    return entry.second.gone && entry.second.job_id == job_id;
  });
}

// What the supervisors do when their daemon is silent: kill at the end of their lease, and at the
// latest at the host's fence.
void Host::WatchDaemon() {
  if (std::exchange(watching_, true)) return;
  const SteadyNanos end = std::min(pinged_ + world_.coordinator.lease, fence_at_);
  LaterOnHost(std::max(end - Now(), nanoseconds(0)), [this] {
    watching_ = false;
    const bool over = Now() >= std::min(pinged_ + world_.coordinator.lease, fence_at_);
    if (over) {
      for (auto& [number, process] : processes_) Kill(number);
      for (auto& [key, run] : runs_) run.stopping = true;
      std::vector<std::string> jobs;
      for (const auto& [key, run] : runs_) jobs.push_back(key.first);
      for (const std::string& job_id : jobs) CheckEnded(job_id);
    }
    const bool left = std::any_of(runs_.begin(), runs_.end(),
                                  [](const auto& entry) { return !entry.second.ended; });
    if (left) {
      LaterOnHost(over ? milliseconds(100) : milliseconds(0), [this] { WatchDaemon(); });
    }
  });
}

void Host::PowerOff(nanoseconds pause) {
  if (!powered_) return;
  world_.timeline.Note(options_.name + ": power off");
  EndDaemon(/*tell=*/false);
  powered_ = false;
  ++boot_;
  watching_ = false;
  fence_at_ = SteadyNanos::max();
  for (auto& [number, process] : processes_) {
    if (!process.gone) world_.ledger.OnGone(number, node_id(), process.job_id);
    process.gone = true;
    if (std::exchange(process.exited, true)) continue;
    process.exit.set_rank(process.rank);
    process.exit.set_signal(SIGKILL);
    process.exit.set_teardown(process.stop_sent);
    process.exit.set_process_generation(process.process_generation);
    process.exit.set_process_rank(process.process_rank);
  }
  for (auto& [key, run] : runs_) run.ended = run.stopping = true;
  world_.timeline.After(pause, [this] {
    powered_ = true;
    StartDaemon();
  });
}

}  // namespace meshrun::coordinator::simulation
