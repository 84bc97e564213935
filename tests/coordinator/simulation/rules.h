// The rules that hold after every batch that the coordinator has made durable, after each of its
// restarts, and at the end. Breaches go to the ledger.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/coordinator/simulation/coordinator_process.h"
#include "tests/coordinator/simulation/ledger.h"

namespace meshrun::coordinator::simulation {

class Rules : public CoordinatorProcess::Observer {
 public:
  // Looks at every `interval`-th batch.
  void Watch(Ledger& ledger, const CoordinatorProcess& coordinator, int interval) {
    ledger_ = &ledger;
    coordinator_ = &coordinator;
    interval_ = interval;
  }

  void OnStepped(const StateMachine& machine, const std::vector<v1::StateEvent>& batch,
                 const std::vector<Action>& actions) override;
  void OnCommitted(const StateMachine& machine, const std::vector<v1::StateRow>& rows) override;
  void OnRestored(const StateMachine& machine) override;
  void OnStaleCommit(uint64_t term, uint64_t newest) override;
  // Jobs whose rows were removed after they had ended.
  uint64_t forgotten() const { return forgotten_; }
  // All jobs have ended, and nothing is under way: nothing may be left of them.
  void CheckNothingLeft(const StateMachine& machine);

 private:
  // A member of a generation, or one that leaves, and what it holds of its node.
  struct KnownMember {
    std::string node_id;
    bool ended = false;
    uint32_t slots = 0;
    uint64_t memory_bytes = 0;
    std::vector<uint32_t> gpus;
    bool operator==(const KnownMember&) const = default;
  };
  // What has been made durable of a job.
  struct Facts {
    v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
    uint64_t generation = 0;
    uint32_t restarts = 0;
    uint32_t restarts_charged = 0;
    // The newest checkpoint: its step and generation.
    std::pair<int64_t, uint64_t> checkpoint{-1, 0};
    bool cancel_requested = false;
    // Its ranks are asked to stand still.
    bool asked_to_quiesce = false;
    std::string failure;
    // Its row.
    v1::JobRecord record;
    // By node rank.
    std::vector<KnownMember> members;
    // By generation and node rank.
    std::map<std::pair<uint64_t, size_t>, KnownMember> leaving;
    // The highest step of generations that are over, as far as their last coordinator was told.
    int64_t reached = -1;
    // Generations that failed at the job's charge and were followed by another.
    std::set<uint64_t> charged;
  };

  // What a coordinator was told of the steps of a generation.
  struct Told {
    uint64_t generation = 0;
    int64_t step = -1;
    uint32_t ranks = 0;
    // When the step came, and for how long the ranks have been paused since, at least; `blur`: by
    // how much less may have been trained, because the events of a batch have times of their own.
    SteadyNanos at{0};
    nanoseconds stood{0};
    nanoseconds blur{0};
    std::optional<SteadyNanos> paused_at;
    // It was suspected to hang since.
    bool hung = false;
    std::string hang;
    bool runs = false;
    // The tally's highest step.
    int64_t highest = -1;
  };

  static KnownMember Known(const Member& member);
  void CheckNodes(const StateMachine& machine);
  void CheckFences(const StateMachine& machine);
  void CheckCheckpoint(const Job& job, Facts& facts);
  void CheckGrowth(const StateMachine& machine, const Job& job, const Facts& facts);
  void CheckJob(const StateMachine& machine, const Job& job);
  void CheckNews(const Job& job, uint64_t session_id, const std::vector<Action>& actions);
  void CheckTraining(const StateMachine& machine, const std::vector<v1::StateEvent>& batch);
  void SeePauses(const StateMachine& machine, SteadyNanos begin, SteadyNanos end);
  void CheckQueueWaits(const StateMachine& machine);
  // False: it does not take it into account.
  bool Tell(const StateMachine& machine, const v1::SessionMessage& said, const std::string& job_id,
            uint64_t generation, int64_t step, SteadyNanos at);
  void CheckPlaces(const Job& job);
  void CheckBarriers(const StateMachine& machine);
  void CheckRow(const StateMachine& machine, const Job& job, const Facts& facts,
                std::string_view when);
  void CheckEndedMembers(const Job& job, Facts& facts);
  void CheckRestoredMembers(const Job& job, const Facts& facts);
  void Remember(const Job& job, Facts& facts);

  Ledger* ledger_ = nullptr;
  const CoordinatorProcess* coordinator_ = nullptr;
  int interval_ = 1;
  int batches_ = 0;
  uint64_t forgotten_ = 0;
  std::map<std::string, Facts> facts_;
  // What this process of the coordinator was told by job, its effective training time, and how many
  // jobs it has placed for the first time.
  std::map<std::string, Told> told_;
  double stepping_ = 0;
  uint64_t placed_ = 0;
};

}  // namespace meshrun::coordinator::simulation
