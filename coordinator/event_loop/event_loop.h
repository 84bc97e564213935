// The one thread on which the state machine runs.
//
// Events are posted from any thread and stamped with the time of their arrival. The loop takes what
// has arrived as one batch, steps it, commits its rows in one transaction, and only then releases
// its actions. When a commit fails the actions are dropped, every call ends with UNAVAILABLE and
// the state is rebuilt from disk: from then on the coordinator is read-only, and tries once a
// second to write the disk again. Meanwhile it answers reads, Hello and heartbeats (a worker that
// gets no answer stops its ranks). All other messages of workers are dropped: once the disk can be
// written, their sessions end with UNAVAILABLE, and their next Hello repeats everything.
#pragma once

#include <atomic>
#include <deque>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/event_loop/recipients.h"
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
    // Events waiting, and their bytes; more are refused.
    size_t queue_limit = 65'536;
    size_t queue_bytes_limit = 256u << 20;
    // The most events of one batch.
    size_t batch_limit = 4096;
    // File that each stepped event is written to, after its length; empty: none.
    std::string record_path;
  };

  explicit EventLoop(const Options& options) : options_(options) {}
  ~EventLoop() { Stop(); }

  // Raises the term, makes it durable, restores the state, starts the thread. DATA_LOSS names a row
  // that cannot be read.
  absl::Status Start();
  // Ends all calls and sessions with UNAVAILABLE. Idempotent.
  void Stop();

  // RESOURCE_EXHAUSTED: the queue is full. UNAVAILABLE: stopping.
  absl::Status Post(v1::StateEvent event);
  // For events that must not be lost: a call or a session has ended. Never refused, even when the
  // queue is full: there are at most as many of them as calls and sessions.
  void PostEnd(v1::StateEvent event);

  // Of a call or session; unique in this process.
  uint64_t NewId() { return next_id_.fetch_add(1); }
  uint64_t term() const { return term_; }
  // Empty while all is well.
  std::string read_only_reason() const;

 private:
  void Run();
  std::vector<v1::StateEvent> TakeBatch();
  void Process(std::vector<v1::StateEvent> batch);
  void ProcessReadOnly(std::vector<v1::StateEvent> batch);
  void AnswerReadOnly(const v1::SessionMessage& event);
  // Steps all, the last one as the end of the batch, and records them.
  Actions StepBatch(std::vector<v1::StateEvent>& batch);
  v1::StateEvent Stamped(v1::StateEvent event) const;
  v1::RestoreEvent RestoreEvent() const;
  void Enqueue(v1::StateEvent event, size_t bytes) MESHRUN_REQUIRES(mu_);
  absl::Status Restore();
  void EnterReadOnly(const absl::Status& why);
  void TryToLeaveReadOnly();

  const Options options_;
  StateMachine machine_;
  std::ofstream record_;
  uint64_t term_ = 0;
  std::atomic<uint64_t> next_id_{1};
  std::thread thread_;

  // Only on the loop's thread.
  bool read_only_ = false;
  bool readable_ = true;
  int64_t frozen_now_nanos_ = 0;
  SteadyNanos next_attempt_{0};

  mutable Mutex mu_;
  CondVar arrived_;
  struct Queued {
    v1::StateEvent event;
    size_t bytes = 0;
  };
  std::deque<Queued> queue_ MESHRUN_GUARDED_BY(mu_);
  size_t queue_bytes_ MESHRUN_GUARDED_BY(mu_) = 0;
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
  std::string read_only_reason_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::coordinator
