// The one thread on which the state machine runs.
//
// Events are posted from any thread and stamped with the time of their arrival. The loop takes what
// has arrived as one batch, steps it, commits its rows in one transaction, and only then releases
// its actions. When a commit fails the actions are dropped, every call and session ends with
// UNAVAILABLE and the state is rebuilt from disk: from then on the coordinator answers reads only,
// and tries once a second whether the disk can be written again.
#pragma once

#include <atomic>
#include <deque>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/recipients.h"
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
    // Events waiting; more are refused.
    size_t queue_limit = 65'536;
    // Events that are one batch at most.
    size_t batch_limit = 4096;
    // Each stepped event goes there, each after its length; empty: none.
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
  // For what must not be lost: that a call or session has ended. Never refused for a full queue;
  // there are at most as many of them as calls and sessions.
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
  // Steps all, the last one as the end of the batch, and records them.
  Actions StepBatch(std::vector<v1::StateEvent>& batch);
  v1::StateEvent Stamped(v1::StateEvent event) const;
  absl::Status Restore();
  void EnterReadOnly(const absl::Status& why);
  void TryToLeaveReadOnly();

  const Options options_;
  StateMachine machine_;
  std::ofstream record_;
  uint64_t term_ = 0;
  std::atomic<uint64_t> next_id_{1};
  std::thread thread_;

  // Loop's thread alone.
  bool read_only_ = false;
  bool readable_ = true;
  int64_t frozen_now_nanos_ = 0;
  SteadyNanos next_attempt_{0};

  mutable Mutex mu_;
  CondVar arrived_;
  std::deque<v1::StateEvent> queue_ MESHRUN_GUARDED_BY(mu_);
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
  std::string read_only_reason_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::coordinator
