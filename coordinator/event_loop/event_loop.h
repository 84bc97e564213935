// The one thread on which the state machine runs.
//
// Events are posted from any thread and stamped with the time of their arrival. The loop takes what
// has arrived as one batch and steps it. Another thread commits the batch's rows in one
// transaction, and the loop releases the batch's actions only when the rows are durable. Until then
// the next events wait in the queue, so readers never see a state that a crash could undo.
// Heartbeats are answered meanwhile, because a worker that gets no answer stops its ranks.
//
//   WRITING --commit fails-----------------------> FAILED --a commit succeeds, restored--> WRITING
//      |                                              ^
//      +--commit under way for read_only_after--> HUNG-+ fails
//      ^                                            |
//      +---------------- the commit returns --------+
//
// FAILED: the actions are dropped, every call ends with UNAVAILABLE, and the state is rebuilt from
// disk. Messages of workers, except Hello and heartbeats, are dropped: once the disk can be
// written, their sessions end with UNAVAILABLE, and their next Hello repeats everything.
// HUNG: messages of workers are held, and stepped when the commit has returned. Progress reports
// are dropped, because newer ones follow. Messages beyond the queue's limit are dropped too; then
// all sessions end when the commit returns, and the workers' next Hello repeats everything. The
// state machine's clock stands still, so that no lease or deadline passes.
// In both the coordinator is read-only and says why: calls that change the state are refused, reads
// are answered from what is on disk.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/event_loop/audit_file.h"
#include "coordinator/event_loop/recipients.h"
#include "coordinator/event_loop/senders.h"
#include "coordinator/event_loop/store_thread.h"
#include "coordinator/state_machine/state_machine.h"
#include "coordinator/state_store/state_store.h"
#include "core/clock.h"
#include "core/mutex.h"

namespace meshrun::coordinator {

class EventLoop {
 public:
  struct Options {
    const Clock& clock;
    StateStore& store;
    Recipients& recipients;
    SteadyNanos lease = std::chrono::seconds(5);
    SteadyNanos heartbeat = std::chrono::seconds(1);
    // A commit that takes longer makes the coordinator read-only until it returns.
    SteadyNanos read_only_after = std::chrono::seconds(3);
    // An event that takes so long is logged: while it is stepped, everybody waits, and heartbeats
    // too.
    SteadyNanos slow_step = std::chrono::milliseconds(250);
    v1::Retention retention = {};
    v1::Quarantine quarantine = {};
    v1::Policy policy = {};
    // Events waiting, and their bytes; more are refused.
    size_t queue_limit = 65'536;
    size_t queue_bytes_limit = 256u << 20;
    // For each sender; absent: all senders are one user's.
    std::optional<Senders::Limits> sender_limits = std::nullopt;
    // The most events of one batch.
    size_t batch_limit = 4096;
    // File that each event is written to, after its length, when its batch is durable; empty: none.
    std::string record_path;
    // Null: the audit has no file.
    AuditFile* audit_file = nullptr;
    // Whether the store has a cluster id, made when it is first used; else there is none.
    bool has_cluster_id = false;
    // So much of the store's rows is in memory at once, about.
    size_t part_bytes = 4u << 20;
    // Called on the loop's thread at each turn, at least once a second: for health checks.
    std::function<void()> on_turn;
    // Whether no other coordinator can lead now; null: there is no other. Once it says no, the loop
    // does nothing more: no action is released, no read answered, and every call and session ends
    // with what `not_leading` says. Any thread.
    std::function<bool()> leads;
    std::function<absl::Status()> not_leading;
    // Called on the loop's thread when a batch with something to write is durable.
    struct Committed {
      SteadyNanos took{0};
      size_t events = 0;
      size_t rows = 0;
      // Generations that start with it.
      uint64_t generations = 0;
    };
    std::function<void(const Committed&)> on_commit;
  };

  explicit EventLoop(const Options& options) : options_(options), policy_(options.policy) {
    if (options_.sender_limits) senders_.emplace(*options_.sender_limits);
    options_.recipients.SetGate(options_.leads);
  }
  ~EventLoop() { Stop(); }

  // Raises the term, makes it durable, restores the state, starts the thread. DATA_LOSS names a row
  // that cannot be read.
  absl::Status Start();
  // Ends all calls and sessions with UNAVAILABLE, and waits for a commit under way. Idempotent.
  void Stop();

  // RESOURCE_EXHAUSTED: the queue, or the sender's share of it, is full; the rest as of
  // Senders::Admit. UNAVAILABLE: stopping, or not leading.
  absl::Status Post(v1::StateEvent event);
  // A message of a session. Where the queue, or the session's share of it, is full it is taken all
  // the same, and the answer is false: the session is to read nothing more until `resume` is
  // called, on the loop's thread. So at most one message of each session stands beyond the limit,
  // and its worker waits.
  // UNAVAILABLE: stopping, or not leading; `resume` is not called then.
  absl::StatusOr<bool> PostMessage(v1::StateEvent event, std::function<void()> resume);
  // In place of Options::policy from now on. Never refused. `by`: who has changed it.
  void SetPolicy(v1::Policy policy, v1::Caller by = {});
  // For events that must not be lost: a call or a session has ended. Never refused, even when the
  // queue is full: there are at most as many of them as calls and sessions.
  void PostEnd(v1::StateEvent event);

  // Id for a call or session; unique in this process.
  uint64_t NewId() { return next_id_.fetch_add(1); }
  uint64_t term() const { return term_.load(); }
  // Empty while all is well.
  std::string read_only_reason() const;
  // What the state is now, or was up to 100 ms ago; what it was last where the loop does not answer
  // in this time, or cannot write its state. Null: nothing was measured yet. Any thread.
  std::shared_ptr<const Measures> Measure(std::chrono::milliseconds wait);
  // Events that wait.
  size_t queued() const;

 private:
  using Batch = std::vector<v1::StateEvent>;
  enum class Mode { kWriting, kHung, kFailed };
  enum class Work { kNone, kCommit, kProbe, kRestore };

  // A state machine with what the store has, the actions of its start, and the time of that.
  struct RestoredState {
    std::unique_ptr<StateMachine> machine;
    Actions actions;
    int64_t now_nanos = 0;
  };
  // What a piece of work on a StoreThread leaves.
  struct Outcome {
    absl::Status status;
    RestoredState state;
    // A probe has found what a commit wrote that seemed to fail: ending_.
    bool roll_call_is_over = false;
    // Its events, as they are recorded.
    std::string record;
  };

  // event_loop.cc
  void Run();
  void Turn();
  void AwaitSomething();
  bool MayAct() const { return options_.leads == nullptr || options_.leads(); }
  // Why nothing is taken any more.
  absl::Status WhyEnded() const MESHRUN_REQUIRES(mu_);
  SteadyNanos WakeAt() const;
  Batch TakeBatch();
  void Process(Batch batch);
  void BeginCommit(Work work, std::vector<v1::StateRow> rows);
  void OnStoreDone();
  void OnCommitted(const absl::Status& status, SteadyNanos took);
  void Release();
  void StandStill(SteadyNanos took);
  // Steps all, the last one as the end of the batch, and keeps their bytes for the record.
  Actions StepBatch(Batch& batch);
  // Appends the event to what is recorded, if anything is.
  void AddTo(std::string* record, const v1::StateEvent& event) const;
  using Costs = std::vector<std::pair<Senders::Event, SteadyNanos>>;
  // The senders of what was stepped, and how long each took.
  void Charge(const Costs& costs);
  // The steady clock without the time in which commits hung.
  SteadyNanos Now() const { return options_.clock.SteadyNow() - SteadyNanos(stood_still_.load()); }
  v1::StateEvent Stamped(v1::StateEvent event) const;
  void Enqueue(v1::StateEvent event, Senders::Event sent) MESHRUN_REQUIRES(mu_);
  // RESOURCE_EXHAUSTED: beyond a limit with so many bytes more.
  absl::Status CheckRoom(size_t bytes) const MESHRUN_REQUIRES(mu_);
  void Poke();

  // measures.cc
  void TellMeasures();

  // restore.cc
  // Without rows.
  v1::StateEvent RestoreEvent() const;
  // Called with the event of a part before it is stepped.
  using OnPart = std::function<void(v1::StateEvent& part)>;
  // Reads the store part by part, so that its rows need no memory beside the state machine's. Any
  // thread. `is_copy`: RestoreEvent.restored. `on_part` may be null.
  absl::StatusOr<RestoredState> ReadState(bool is_copy, const OnPart& on_part) const;
  absl::Status Restore();
  // What BeginAnew says. False: the state cannot be read or written, and the loop is read-only.
  bool Begin(const BeginAnew& anew);
  absl::Status FindClusterId();

  // read_only.cc
  void EnterReadOnly(Mode mode, const std::string& reason);
  void LeaveReadOnly();
  // Reads of the batch whose commit hangs: they need not wait for it.
  void AnswerUncommittedReads();
  void AnswerDuringCommit();
  void ProcessReadOnly(Batch batch);
  void AnswerWorker(const v1::SessionMessage& event);
  void AnswerRead(v1::StateEvent event);
  void LoadView();
  void OnViewLoaded();
  void RefuseWaitingReads();
  absl::Status Refusal() const;
  void BeginProbe();
  void OnProbed(Outcome& outcome);

  const Options options_;
  // Never null.
  std::unique_ptr<StateMachine> machine_ = std::make_unique<StateMachine>();
  // Rises on the loop's thread, while no commit is under way.
  std::atomic<uint64_t> term_{0};
  // The state is a copy: RollCall comes first.
  bool restored_ = false;
  // The file of the audit at the start.
  bool audit_file_is_read_ = false;
  uint64_t audit_file_had_ = 0;
  std::string cluster_id_;
  std::atomic<uint64_t> next_id_{1};
  // Nanoseconds.
  std::atomic<int64_t> stood_still_{0};
  std::thread thread_;
  StoreThread commits_{[this] { Poke(); }};
  StoreThread loads_{[this] { Poke(); }};

  // Only on the loop's thread, except that the work under way writes the record and its outcome.
  Mode mode_ = Mode::kWriting;
  Work work_ = Work::kNone;
  SteadyNanos work_began_{0};
  std::shared_ptr<Outcome> outcome_;
  std::ofstream record_;
  std::string unrecorded_;
  // Actions and events of the batch whose commit is under way.
  std::vector<Action> unreleased_;
  Batch uncommitted_;
  // End of the roll call, from when it is committed until it is known whether it is written.
  std::optional<BeginAnew> ending_;
  Options::Committed committed_;

  // Read-only: what is on disk, to answer reads from; null until it is loaded.
  std::unique_ptr<StateMachine> view_;
  std::shared_ptr<Outcome> view_outcome_;
  SteadyNanos read_only_began_{0};
  SteadyNanos load_began_{0};
  Batch waiting_reads_;
  int64_t frozen_now_nanos_ = 0;
  SteadyNanos next_attempt_{0};
  // Hung: for after the commit. Beyond the queue's limit messages are dropped, and said again.
  Batch held_;
  bool dropped_messages_ = false;
  // Another coordinator has begun a higher term on this state.
  bool superseded_ = false;

  mutable Mutex policy_mu_;
  v1::Policy policy_ MESHRUN_GUARDED_BY(policy_mu_);

  mutable Mutex mu_;
  CondVar arrived_;
  struct Queued {
    v1::StateEvent event;
    Senders::Event sent;
  };
  std::deque<Queued> queue_ MESHRUN_GUARDED_BY(mu_);
  size_t queue_bytes_ MESHRUN_GUARDED_BY(mu_) = 0;
  // Sessions that wait for room.
  struct Paused {
    std::string sender;
    std::function<void()> resume;
  };
  std::vector<Paused> paused_ MESHRUN_GUARDED_BY(mu_);
  std::optional<Senders> senders_ MESHRUN_GUARDED_BY(mu_);
  SteadyNanos senders_forgotten_at_ MESHRUN_GUARDED_BY(mu_){0};
  // How many of the queue's events AnswerDuringCommit has seen.
  size_t seen_ MESHRUN_GUARDED_BY(mu_) = 0;
  bool poked_ MESHRUN_GUARDED_BY(mu_) = false;
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
  // The leadership was lost: the thread has ended.
  bool lost_ MESHRUN_GUARDED_BY(mu_) = false;
  std::string read_only_reason_ MESHRUN_GUARDED_BY(mu_);
  // How often Measure was called, and for which calls the last measures are.
  uint64_t measures_wanted_ MESHRUN_GUARDED_BY(mu_) = 0;
  uint64_t measured_ MESHRUN_GUARDED_BY(mu_) = 0;
  std::chrono::steady_clock::time_point measured_at_ MESHRUN_GUARDED_BY(mu_);
  std::shared_ptr<const Measures> measures_ MESHRUN_GUARDED_BY(mu_);
  CondVar measured_now_;
};

}  // namespace meshrun::coordinator
