// A host: its worker daemon, the supervisors that outlive it, and their ranks. Says and does what
// worker/ does (session.cc, generations/, supervisor/), on a clock of its own.
//
//   daemon       killed, started again, stopped for a while (SIGSTOP), drained
//   supervisors  kill their ranks when the daemon does not ping for a lease, or at the host's fence
//   rank         a process that runs a RankProgram; may ignore SIGTERM, and may not die for a while
//                even when it is killed (an uninterruptible sleep); may take later generations
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/coordinator/simulation/ledger.h"
#include "tests/coordinator/simulation/network.h"

namespace meshrun::coordinator::simulation {

struct World;
class RankProgram;

// One process of a rank.
struct RankProcess {
  // Unique in the simulation.
  uint64_t number = 0;
  std::string job_id;
  // What it was started as.
  uint64_t process_generation = 0;
  int process_rank = 0;
  // What it is now.
  uint64_t generation = 0;
  int rank = 0;
  int world_size = 0;
  // Name of the job's work, in World::works.
  std::string work;
  bool joined = false;
  // It has said that it takes another generation: it has met the others once.
  bool announced = false;
  // The step that it has reported last in this generation; -1: none.
  int64_t step = -1;
  // The barrier that it has reported to be blocked in; 0: none.
  uint64_t waits_in = 0;
  bool stop_sent = false;
  bool killed = false;
  bool exited = false;
  // What it has started is gone too.
  bool gone = false;
  v1::RankExit exit;
  std::shared_ptr<RankProgram> program;

  GenerationKey key() const { return {job_id, generation}; }
};

class Host {
 public:
  struct Options {
    std::string name;
    uint32_t slots = 8;
    uint32_t gpus = 0;
    uint64_t memory_bytes = uint64_t{64} << 30;
    HostClock clock;
    // Without a coordinator for so long, ranks are stopped.
    nanoseconds orphan_timeout = seconds(15);
    // Hello.fence_after; absent: the host promises nothing.
    std::optional<nanoseconds> fence_after;
  };

  Host(World& world, Options options);

  const Options& options() const { return options_; }
  std::string node_id() const { return "id-" + options_.name; }
  uint64_t incarnation() const { return incarnation_; }
  bool daemon_up() const { return daemon_up_; }
  // Number of generations that are here, or whose end is not acknowledged.
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
  // Null when it has ended.
  RankProcess* Find(uint64_t process);
  void Exit(uint64_t process, int code, int signal);
  void Report(RankProcess& process, int64_t step);
  void Join(RankProcess& process);
  void Announce(RankProcess& process);
  void ReportQuiesced(const RankProcess& process, int64_t step);
  // It has been blocked for a while in the barrier of all ranks that is its so-many-th.
  void ReportWait(const RankProcess& process, uint64_t barrier);
  void WithdrawWait(const RankProcess& process);

 private:
  // A generation that was prepared here.
  struct Run {
    std::map<int, v1::RankAssignment> seats;
    nanoseconds kill_grace{0};
    int world_size = 0;
    std::string work;
    // Some of its ranks are processes of earlier generations.
    bool kept = false;
    bool prepared = false;
    bool started = false;
    bool stopping = false;
    bool ended = false;
    // It is not kept once it has ended.
    bool forgotten = false;
    // Its end ends this generation too.
    uint64_t ends_as = 0;
  };
  using Runs = std::map<GenerationKey, Run>;
  // A stream that is the session, or may become it.
  struct Attempt {
    uint64_t id = 0;
    uint32_t number = 0;  // Hello.attempt
    SteadyNanos began{0};
    std::shared_ptr<Stream> stream;
    // Those that its Hello names as running.
    std::set<GenerationKey> named;
  };

  SteadyNanos Now() const;
  // On the daemon's loop: never while it is stopped, never in another life of it.
  void Later(nanoseconds own_span, std::function<void()> run);
  void WhenAwake(std::function<void()> run);
  // Survives the daemon, not the host.
  void LaterOnHost(nanoseconds own_span, std::function<void()> run);

  // --- daemon: session ---
  void Connect();
  void ConnectBeside();
  // Drops it; the session begins anew where it was the open one or the last one.
  void Leave(uint64_t id);
  Attempt* FindAttempt(uint64_t id);
  void Tick(uint64_t ticks);
  void OnItem(uint64_t stream, Wire<v1::OpenSessionResponse>::Item item);
  void OnSessionDone();
  void DropStream(uint64_t id, bool tell);
  void DropStreams(bool tell);
  void OnWelcome(const v1::OpenSessionResponse& message);
  v1::OpenSessionRequest Hello() const;
  v1::RunningGeneration Describe(const GenerationKey& key, const Run& run) const;
  void Send(const GenerationKey& key, v1::OpenSessionRequest message);
  void SendHeartbeat();
  void EndDaemon(bool tell);
  void Ping();

  // --- daemon: generations ---
  void Handle(const v1::OpenSessionResponse& message);
  void Prepare(const v1::OpenSessionResponse& message);
  void AnswerWhenReady(const GenerationKey& key);
  void AnswerPrepare(const GenerationKey& key);
  void Start(const GenerationKey& key, Run& run);
  // Stops all the job's generations up to this one. `forget`: at once, and they are not kept once
  // they have ended.
  void Stop(const GenerationKey& key, nanoseconds grace, bool forget);
  void Quiesce(const GenerationKey& key);
  void Tell(const GenerationKey& key, const v1::PeerNews& news);
  void Say(const GenerationKey& key, v1::OpenSessionRequest message);
  void SendStarted(const GenerationKey& key);
  void SendExit(const RankProcess& process);
  void SendEnded(const GenerationKey& key);
  void StopAll();
  void EndWhenQuiet();
  Runs::iterator Newest(const std::string& job_id);
  // Whether a process of the job is left, from this generation or an earlier one.
  bool HasProcesses(const GenerationKey& upto) const;
  // Whether the process lives on in the run.
  static bool HasSeat(const Run& run, const RankProcess& process);

  // --- supervisors ---
  void StopProcess(RankProcess& process, nanoseconds grace);
  void Kill(uint64_t process);
  void OnGone(uint64_t process);
  void CheckEnded(const std::string& job_id);
  void ForgetGone(const std::string& job_id);
  void WatchDaemon();

  World& world_;
  const Options options_;
  uint64_t incarnation_ = 0;
  bool powered_ = true;
  uint64_t boot_ = 1;

  bool daemon_up_ = false;
  uint64_t life_ = 0;
  SteadyNanos stalled_until_{0};
  std::deque<std::function<void()>> deferred_;
  std::vector<Attempt> attempts_;
  uint64_t last_stream_ = 0;
  // The id of the attempt that is the session; 0: none is.
  uint64_t open_ = 0;
  // Those that the session's Hello named as running; they may be gone since.
  std::set<GenerationKey> named_;
  uint64_t session_number_ = 0;
  uint32_t last_attempt_ = 0;
  bool number_is_welcomed_ = false;
  // After a silence: when the lease is over.
  SteadyNanos hurry_until_{0};
  // Numbers of the connecting timers that are valid; those with other numbers do nothing.
  uint64_t reconnect_ = 0;
  uint64_t beside_ = 0;
  uint64_t term_ = 0;
  uint64_t ticks_ = 0;
  uint64_t sequence_ = 0;
  SteadyNanos last_heard_{0};
  // When the heartbeats were sent that wait for their answer, and the last one that has it.
  std::map<uint64_t, SteadyNanos> sent_;
  std::optional<SteadyNanos> answered_;
  nanoseconds backoff_{0};
  bool draining_ = false;
  bool orphaned_ = false;
  nanoseconds drained_pause_{0};
  // What the supervisors know: the last ping, and how long it is good for.
  SteadyNanos pinged_{0};
  SteadyNanos fence_at_ = SteadyNanos::max();
  bool watching_ = false;

  std::string prepare_error_;
  bool bad_command_ = false;
  SteadyNanos ranks_kept_until_{0};
  Runs runs_;
  std::map<uint64_t, RankProcess> processes_;
};

}  // namespace meshrun::coordinator::simulation
