// The coordinator's process around the real state machine: takes what has arrived as one batch,
// steps it, commits the rows, and only then lets its actions out. It can be killed before and after
// each commit, can stand still, and its disk can hang.
//
// Where several coordinators share a state (open_store), a commit may fail: whether it was done
// shows later. Then this process restores its state, or another one takes over, in a new term. A
// process that is replaced so may go on for a while with what it still wants to write.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "coordinator/state_machine/state_machine.h"
#include "coordinator/state_store/state_store.h"
#include "tests/coordinator/simulation/network.h"

namespace meshrun::coordinator::simulation {

class CoordinatorProcess {
 public:
  // Clients that repeat a submit do so within this time.
  static constexpr nanoseconds kKeepAtLeast = seconds(120);

  // What is told of each moment; invariants hang here.
  struct Observer {
    virtual ~Observer() = default;
    // The machine has stepped a batch. Nothing is durable yet, and no action is out.
    virtual void OnStepped(const StateMachine&, const std::vector<v1::StateEvent>& /*batch*/,
                           const std::vector<Action>&) {}
    // The machine has stepped a batch, and the batch is durable. Actions are not out yet, and may
    // never be.
    virtual void OnCommitted(const StateMachine&, const std::vector<v1::StateRow>&) {}
    // A new process has restored what the last one has made durable.
    virtual void OnRestored(const StateMachine&) {}
    // A process has written in a term that is over.
    virtual void OnStaleCommit(uint64_t /*term*/, uint64_t /*newest*/) {}
  };
  using Answer = std::function<void(const absl::Status&, const MessagePtr&)>;

  CoordinatorProcess(Timeline& timeline, Random& random, Observer& observer, StateStore& store)
      : timeline_(timeline), random_(random), observer_(observer), store_(store) {}

  // --- its flags ---
  nanoseconds lease = seconds(5);
  nanoseconds heartbeat = seconds(1);

  // --- its host ---
  HostClock clock;
  // Ended jobs that are remembered; 0: as many as the state machine does by itself.
  uint32_t keep_ended = 0;
  // A lost node is forgotten after so long; 0: after a day.
  nanoseconds keep_lost{0};
  // A node that goes away so often within an hour is drained; 0: never.
  uint32_t quarantine_after = 0;
  // At most so long after an event its batch is taken.
  nanoseconds turn = milliseconds(1);
  // Crashes at each write with this chance, in 1,000; and at the write with this number, before its
  // commit or after it.
  uint64_t crash_chance = 0;
  uint64_t crash_at_write = 0;
  bool crash_after_commit = false;
  // Makes a process's own access to a state that it shares with others; null: all use `store`.
  std::function<std::unique_ptr<StateStore>()> open_store;
  // So many of 1,000 calls of such a store have a fault.
  uint64_t store_fault_chance = 0;
  void Start();
  // Its sessions break; it starts again after `pause`.
  void Crash(nanoseconds pause);
  void Stall(nanoseconds span);
  // The next commit takes so long.
  void HangDisk(nanoseconds span) { disk_hangs_ = span; }
  bool up() const { return machine_ != nullptr; }

  // --- sessions ---
  std::shared_ptr<Stream> Open(Host& host, const Link& link,
                               Wire<v1::OpenSessionResponse>::Arrive at_worker);
  // The link lets through again.
  void Replan();

  // --- calls: answered once, with UNAVAILABLE where the answer cannot come ---
  // `link` null: the caller is on the coordinator's own host. `item` takes a stream's items.
  uint64_t Call(v1::StateEvent event, const Link* link, Answer answer, Answer item = nullptr);
  // The caller goes away; the answer, if one comes, says so.
  void CancelCall(uint64_t call_id);

  // Time on its own steady clock.
  SteadyNanos Now() const { return clock.Steady(timeline_.now()); }
  // Null while no process runs.
  const StateMachine* machine() const { return machine_.get(); }
  uint64_t steps() const { return steps_; }
  uint64_t writes() const { return writes_; }
  uint64_t crashes() const { return crashes_; }
  // Commits that failed, and those of them that were done all the same.
  uint64_t failed_commits() const { return failed_commits_; }
  uint64_t done_nevertheless() const { return done_nevertheless_; }
  // Writes of processes that were replaced, all refused.
  uint64_t stale_commits() const { return stale_commits_; }
  // Barriers that this process has let calls into and has not answered.
  const std::map<uint64_t, v1::EnterBarrierRequest>& open_barriers() const {
    return open_barriers_;
  }
  size_t open_call_count() const { return calls_.size(); }
  size_t stream_count() const { return streams_.size(); }

 private:
  struct PendingCall {
    const Link* link = nullptr;
    Answer answer;
    Answer item;
  };
  void Post(v1::StateEvent event);
  void PlanTurn();
  void Turn();
  enum class CrashPoint { kNone, kBefore, kAfter };
  CrashPoint DrawCrash();
  // False: the process has crashed before or after the commit, or the commit has failed.
  bool Commit(const std::vector<v1::StateRow>& rows);
  // shared_state.cc
  StateStore& store() { return own_store_ != nullptr ? *own_store_ : store_; }
  // Commits to the store, with a row more that names the batch.
  absl::Status Write(const std::vector<v1::StateRow>& rows);
  // Whether the batch that was written last is durable by now.
  bool IsLastBatchDurable();
  void OnCommitFailed(const absl::Status& why, const std::vector<v1::StateRow>& rows);
  // Goes on in the same process: writes something, after which nothing late can be done, and
  // restores.
  void Probe();
  void After(nanoseconds span, void (CoordinatorProcess::*next)());
  // The batch of a failed commit: it was done after all, or it never will be.
  void ResolveUnknown(const std::vector<v1::StateRow>& rows);
  void LetReplacedOnesWrite();
  // Begins with what the store has, in this term.
  void Restore();
  // Its sessions break, its calls end.
  void EndProcess();
  void Finish(Actions actions);
  void Release(std::vector<Action> actions);
  void Reply(uint64_t call_id, const absl::Status& status, MessagePtr response);
  void PlanTick();
  void Retire(const std::shared_ptr<Stream>& stream);
  void OnArrival(uint64_t session_id, Wire<v1::OpenSessionRequest>::Item item);
  nanoseconds Latency(const Link* link);

  Timeline& timeline_;
  Random& random_;
  Observer& observer_;
  StateStore& store_;
  std::unique_ptr<StateMachine> machine_;
  std::unique_ptr<StateStore> own_store_;
  uint64_t term_ = 0;
  // Number of the batch that was written last.
  uint64_t batch_ = 0;
  struct Unknown {
    std::unique_ptr<StateMachine> machine;
    std::vector<v1::StateRow> rows;
  };
  std::optional<Unknown> unknown_;
  struct Replaced {
    std::shared_ptr<StateStore> store;
    uint64_t term = 0;
  };
  std::vector<Replaced> replaced_;
  // Number of this process: what was planned for an earlier one does not happen.
  uint64_t life_ = 0;
  uint64_t next_id_ = 1;
  std::vector<v1::StateEvent> inbox_;
  bool turn_planned_ = false;
  bool committing_ = false;
  nanoseconds disk_hangs_{0};
  SteadyNanos stalled_until_{0};
  uint64_t tick_ = 0;
  std::map<uint64_t, std::shared_ptr<Stream>> streams_;
  // The sessions that this process holds open.
  std::set<uint64_t> open_;
  std::map<uint64_t, PendingCall> calls_;
  std::map<uint64_t, v1::EnterBarrierRequest> open_barriers_;
  uint64_t steps_ = 0;
  uint64_t writes_ = 0;
  uint64_t crashes_ = 0;
  uint64_t failed_commits_ = 0;
  uint64_t done_nevertheless_ = 0;
  uint64_t stale_commits_ = 0;
};

}  // namespace meshrun::coordinator::simulation
