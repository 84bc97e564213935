// The coordinator's process around the real state machine: takes what has arrived as one batch,
// steps it, commits the rows, and only then lets its actions out. It can be killed before and after
// each commit, can stand still, and its disk can hang.
#pragma once

#include <functional>
#include <map>
#include <memory>
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
  // False: the process has crashed before or after the commit.
  bool Commit(const std::vector<v1::StateRow>& rows);
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
  uint64_t term_ = 0;
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
};

}  // namespace meshrun::coordinator::simulation
