// A host: its worker daemon, the supervisors that outlive it, and their ranks. Says and does what
// worker/ does (session.cc, generations.cc, supervisor.cc), on a clock of its own.
//
//   daemon       killed, started again, stopped for a while (SIGSTOP), drained
//   supervisor   one per generation; kills its ranks when the daemon does not ping for a lease
//   rank         a process that runs a RankProgram; may ignore SIGTERM, and may not die for a while
//                even when it is killed (an uninterruptible sleep)
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/coordinator/simulation/ledger.h"
#include "tests/coordinator/simulation/network.h"

namespace meshrun::coordinator::simulation {

struct World;

// One process of a rank.
struct RankProcess {
  // Unique in the simulation.
  uint64_t number = 0;
  GenerationKey generation;
  int rank = 0;
  int world_size = 0;
  // Name of the job's work, in World::works.
  std::string work;
  bool exited = false;
  v1::RankExit exit;
};

class Host {
 public:
  struct Options {
    std::string name;
    uint32_t slots = 8;
    uint32_t gpus = 0;
    HostClock clock;
    // Without a coordinator for so long, ranks are stopped.
    nanoseconds orphan_timeout = seconds(15);
  };

  Host(World& world, Options options);

  const Options& options() const { return options_; }
  std::string node_id() const { return "id-" + options_.name; }
  uint64_t incarnation() const { return incarnation_; }
  bool daemon_up() const { return daemon_up_; }
  bool powered() const { return powered_; }
  // Of generations that are here, or whose end is not acknowledged.
  size_t generation_count() const { return runs_.size(); }
  std::vector<const RankProcess*> LiveRanks() const;
  Link link;

  // --- faults ---
  void StartDaemon();
  void CrashDaemon(nanoseconds pause);
  void StallDaemon(nanoseconds span);
  // Everything on it dies, and nobody is told.
  void PowerOff(nanoseconds pause);
  // SIGTERM to the daemon, which comes back after `pause`.
  void Drain(nanoseconds pause);
  void BreakSession();
  void SetBlocked(bool up, bool down);
  // What is killed until then does not die before.
  void KeepRanksAlive(nanoseconds span);
  // Empty: prepares again.
  void RefusePrepare(std::string error, bool bad_command);

  // --- of rank programs ---
  RankProcess* Find(uint64_t process);
  void Exit(uint64_t process, int code, int signal);
  void Report(const RankProcess& process, int64_t step);

 private:
  struct Run {
    std::map<int, RankProcess> ranks;
    std::map<int, std::vector<uint32_t>> gpus;
    nanoseconds kill_grace{0};
    int world_size = 0;
    std::string work;
    bool prepared = false;
    bool started = false;
    bool stop_sent = false;
    bool killing = false;
    bool ended = false;
    // The daemon reports nothing about it any more.
    bool forgotten = false;
    SteadyNanos pinged{0};
  };

  SteadyNanos Now() const;
  // On the daemon's loop: never while it is stopped, never in another life of it.
  void Later(nanoseconds own_span, std::function<void()> run);
  void WhenAwake(std::function<void()> run);
  // Survives the daemon, not the host.
  void LaterOnHost(nanoseconds own_span, std::function<void()> run);

  // --- daemon: session ---
  void Connect();
  void Tick(uint64_t ticks);
  void OnItem(uint64_t stream, Wire<v1::OpenSessionResponse>::Item item);
  void OnSessionDone();
  void DropStream(bool tell);
  void OnWelcome(const v1::OpenSessionResponse& message);
  v1::OpenSessionRequest Hello() const;
  void Send(const GenerationKey& key, v1::OpenSessionRequest message);
  void SendHeartbeat();
  void EndDaemon(bool tell);

  // --- daemon: generations ---
  void Handle(const v1::OpenSessionResponse& message);
  void Prepare(const v1::OpenSessionResponse& message);
  void AnswerPrepare(const GenerationKey& key);
  void SendStarted(const GenerationKey& key, const Run& run);
  void SendExit(const GenerationKey& key, const v1::RankExit& exit);
  void SendEnded(const GenerationKey& key);
  void StopAll();
  void EndWhenQuiet();

  // --- supervisor ---
  void Start(const GenerationKey& key, Run& run);
  void Stop(const GenerationKey& key, Run& run, nanoseconds grace);
  void Kill(const GenerationKey& key);
  void OnAllExited(const GenerationKey& key);
  void End(const GenerationKey& key);
  void WatchLease(const GenerationKey& key);
  void EndRank(const GenerationKey& key, Run& run, RankProcess& rank, int code, int signal);

  World& world_;
  const Options options_;
  uint64_t incarnation_ = 0;
  bool powered_ = true;
  uint64_t boot_ = 1;

  bool daemon_up_ = false;
  uint64_t life_ = 0;
  SteadyNanos stalled_until_{0};
  std::deque<std::function<void()>> deferred_;
  std::shared_ptr<Stream> stream_;
  uint64_t stream_id_ = 0;
  bool open_ = false;
  uint64_t term_ = 0;
  uint64_t ticks_ = 0;
  uint64_t sequence_ = 0;
  SteadyNanos last_heard_{0};
  SteadyNanos stream_began_{0};
  nanoseconds backoff_{0};
  bool draining_ = false;
  bool orphaned_ = false;
  nanoseconds drained_pause_{0};

  std::string prepare_error_;
  bool bad_command_ = false;
  SteadyNanos ranks_kept_until_{0};
  std::map<GenerationKey, Run> runs_;
};

}  // namespace meshrun::coordinator::simulation
