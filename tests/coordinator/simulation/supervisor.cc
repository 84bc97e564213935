// The part of a host that outlives its daemon: supervisors and ranks.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "tests/coordinator/simulation/host.h"
#include "tests/coordinator/simulation/rank_program.h"
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
  for (const auto& [key, run] : runs_) {
    for (const auto& [number, rank] : run.ranks) {
      if (run.started && !rank.exited) out.push_back(&rank);
    }
  }
  return out;
}

RankProcess* Host::Find(uint64_t process) {
  for (auto& [key, run] : runs_) {
    for (auto& [number, rank] : run.ranks) {
      if (rank.number == process) return rank.exited || !powered_ ? nullptr : &rank;
    }
  }
  return nullptr;
}

void Host::Start(const GenerationKey& key, Run& run) {
  if (run.started || run.ended) return;
  run.started = true;
  for (auto& [number, rank] : run.ranks) {
    rank.number = world_.next_process++;
    world_.ledger.OnStarted(node_id(), key, number, run.gpus[number]);
    BeginRankProgram(world_, *this, rank.number);
  }
  SendStarted(key, run);
}

void Host::Stop(const GenerationKey& key, Run& run, nanoseconds grace) {
  if (run.ended || run.killing) return;
  if (!run.started) {
    End(key);
    return;
  }
  if (!std::exchange(run.stop_sent, true)) {
    for (auto& [number, rank] : run.ranks) {
      // Some ranks do not listen.
      if (rank.exited || grace.count() == 0 || world_.random.OneIn(6)) continue;
      const nanoseconds span = world_.random.Between(milliseconds(1), seconds(2));
      LaterOnHost(span, [this, process = rank.number] {
        if (world_.timeline.now() >= ranks_kept_until_) Exit(process, 0, SIGTERM);
      });
    }
  }
  LaterOnHost(grace, [this, key] { Kill(key); });
}

void Host::Kill(const GenerationKey& key) {
  const auto it = runs_.find(key);
  if (it == runs_.end() || it->second.ended) return;
  Run& run = it->second;
  run.killing = run.stop_sent = true;
  if (!run.started) {
    End(key);
    return;
  }
  bool alive = false;
  for (auto& [number, rank] : run.ranks) {
    if (rank.exited) continue;
    alive = true;
    const nanoseconds asleep = std::max(nanoseconds(0), ranks_kept_until_ - world_.timeline.now());
    LaterOnHost(asleep + world_.random.Between(milliseconds(1), milliseconds(60)),
                [this, process = rank.number] { Exit(process, 0, SIGKILL); });
  }
  if (!alive) LaterOnHost(milliseconds(20), [this, key] { End(key); });
}

void Host::Exit(uint64_t process, int code, int signal) {
  RankProcess* const rank = Find(process);
  if (rank == nullptr) return;
  const GenerationKey key = rank->generation;
  EndRank(key, runs_.at(key), *rank, code, signal);
}

void Host::EndRank(const GenerationKey& key, Run& run, RankProcess& rank, int code, int signal) {
  rank.exited = true;
  rank.exit.set_rank(rank.rank);
  rank.exit.set_exit_code(code);
  rank.exit.set_signal(signal);
  rank.exit.set_teardown(run.stop_sent);
  rank.exit.set_at_unix_nanos(options_.clock.Wall(world_.timeline.now()).count());
  if (world_.timeline.notes_wanted()) {
    world_.timeline.Note(fmt::format("{}: rank {} of {}/{} ends, code {} signal {}", options_.name,
                                     rank.rank, key.first, key.second, code, signal));
  }
  SendExit(key, rank.exit);
  const bool all = std::all_of(run.ranks.begin(), run.ranks.end(),
                               [](const auto& entry) { return entry.second.exited; });
  if (!all) return;
  // A process that a rank has started may live a little longer, and holds what the rank held.
  const bool lingers = !run.killing && world_.random.OneIn(6);
  LaterOnHost(lingers ? world_.random.Between(milliseconds(100), kLinger) : milliseconds(1),
              [this, key] { End(key); });
}

void Host::End(const GenerationKey& key) {
  const auto it = runs_.find(key);
  if (it == runs_.end() || it->second.ended) return;
  it->second.ended = true;
  world_.ledger.OnGone(node_id(), key);
  SendEnded(key);
  WhenAwake([this] { EndWhenQuiet(); });
}

void Host::WatchLease(const GenerationKey& key) {
  const auto it = runs_.find(key);
  if (it == runs_.end() || it->second.ended) return;
  const nanoseconds left = it->second.pinged + CoordinatorProcess::kLease - Now();
  if (left <= nanoseconds(0)) {
    Kill(key);
    return;
  }
  LaterOnHost(left, [this, key] { WatchLease(key); });
}

void Host::PowerOff(nanoseconds pause) {
  if (!powered_) return;
  world_.timeline.Note(options_.name + ": power off");
  EndDaemon(/*tell=*/false);
  powered_ = false;
  ++boot_;
  for (auto it = runs_.begin(); it != runs_.end();) {
    Run& run = it->second;
    if (!run.ended) world_.ledger.OnGone(node_id(), it->first);
    for (auto& [number, rank] : run.ranks) {
      if (!run.started || rank.exited) continue;
      rank.exited = true;
      rank.exit.set_rank(number);
      rank.exit.set_signal(SIGKILL);
      rank.exit.set_teardown(run.stop_sent);
    }
    run.ended = true;
    ++it;
  }
  world_.timeline.After(pause, [this] {
    powered_ = true;
    StartDaemon();
  });
}

}  // namespace meshrun::coordinator::simulation
