// A state machine with a fake clock, fake workers and a durable state in memory.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/state_machine/state_machine.h"
#include "coordinator/state_store/memory_state_store.h"
#include "core/clock.h"
#include "tests/coordinator/support/fake_worker.h"

namespace meshrun::coordinator::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

// {"name": "train", "command": ["./train"]} on `nodes` nodes with `procs` ranks each.
v1::JobSpec MakeSpec(uint32_t nodes, uint32_t procs);

// Which the coordinator gives workers with certificates.
inline constexpr std::chrono::hours kCertificateGrace(72);
inline constexpr std::chrono::hours kCertificateLasts(24 * 365);

class Harness {
 public:
  struct Answer {
    bool done = false;
    absl::Status status;
    MessagePtr response;
    std::vector<MessagePtr> items;
    template <typename Message>
    const Message& As() const {
      return dynamic_cast<const Message&>(*response);
    }
  };

  Harness() { StartCoordinator(); }

  // A coordinator process on the state that the last one left; sessions are gone.
  void StartCoordinator();
  // The state is this copy from now on, and a coordinator starts on it with --restored. Workers
  // connect, and once it begins anew they connect again.
  void RestoreCopy(const std::vector<v1::StateRow>& copy);
  // How long a coordinator takes at its start for each part of its state.
  std::chrono::nanoseconds part_takes{0};
  // Name of a worker that does not connect by itself then.
  std::string silent;
  // What the last roll call has come to.
  std::string restored_summary;
  // The same, after adding a row to that state.
  void StartCoordinatorWith(v1::StateTable table, const std::string& key, const std::string& value);

  FakeWorker& AddWorker(const std::string& name, uint32_t slots = 8) {
    FakeWorker::Options options;
    options.name = name;
    options.slots = slots;
    return AddWorkerWith(std::move(options));
  }
  FakeWorker& AddWorkerWith(FakeWorker::Options options);
  // Opens a session and says Hello. Answers travel until nobody has anything more to say.
  void Connect(FakeWorker& worker);
  void Disconnect(FakeWorker& worker);
  void Say(FakeWorker& worker, FakeWorker::Requests requests);
  // False after the coordinator closed it; its status is in `closed`.
  bool connected(const FakeWorker& worker) const;
  std::map<std::string, absl::Status> closed;
  // Workers say nothing of themselves while this is false: no heartbeats in Advance.
  bool heartbeats = true;
  // Cluster id of the coordinator from its next start on.
  std::string cluster_id;

  // In steps of the machine's own deadlines and of heartbeats.
  void Advance(std::chrono::nanoseconds by);
  FakeClock clock;
  // By how much the coordinator's wall clock is wrong.
  std::chrono::nanoseconds wall_ahead{0};
  // Settings of the coordinators that are started from now on.
  v1::Retention retention;
  v1::Quarantine quarantine;
  v1::Policy policy;

  uint64_t Call(v1::StateEvent event);
  Answer& answer(uint64_t call_id) { return answers_[call_id]; }
  void CancelCall(uint64_t call_id);

  // The job's id.
  std::string Submit(const v1::JobSpec& spec);
  Answer& TrySubmit(const v1::JobSpec& spec, const std::string& request_id = "",
                    bool must_fit = false);
  Answer& TrySubmitAs(const std::string& user, const v1::JobSpec& spec);
  std::string SubmitAs(const std::string& user, const v1::JobSpec& spec);
  void Cancel(const std::string& job_id, bool now = false);
  // As a client sees it.
  const v1::Job& job(const std::string& job_id) const {
    const Job& job = machine_->jobs().all().at(job_id);
    if (!job.queued()) return job.view;
    return queued_[job_id] = machine_->jobs().View(job, /*with_ranks=*/true);
  }
  v1::JobState state(const std::string& job_id) const { return job(job_id).state(); }
  const v1::Node& node(const FakeWorker& worker) const {
    return machine_->nodes().all().at(worker.node_id()).record;
  }
  v1::Fence fence(const std::string& job_id) const;
  // What the events of this kind say.
  std::vector<std::string> Said(const std::string& kind);
  bool HasEvent(const std::string& kind) { return !Said(kind).empty(); }
  // The durable state.
  std::vector<v1::StateRow> rows() { return *store_.Load(); }

  StateMachine& machine() { return *machine_; }
  uint64_t term() const { return term_; }
  // All that was stepped, and what came of it: for replay. Kept while `record` is true.
  bool record = true;
  std::vector<v1::StateEvent> history;
  std::vector<std::string> outcome;

  // Delivers nothing to and from workers until it is true again.
  void Settle();

 private:
  void Step(v1::StateEvent event);

  bool restored_ = false;
  std::unique_ptr<StateMachine> machine_;
  MemoryStateStore store_;
  uint64_t term_ = 0;
  uint64_t next_id_ = 1;
  std::map<std::string, std::unique_ptr<FakeWorker>> workers_;
  std::map<uint64_t, FakeWorker*> sessions_;
  std::deque<std::pair<uint64_t, v1::OpenSessionResponse>> wire_;
  std::map<uint64_t, Answer> answers_;
  mutable std::map<std::string, v1::Job> queued_;
};

}  // namespace meshrun::coordinator::testing
