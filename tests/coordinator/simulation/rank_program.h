// What a simulated rank does in each of its generations: registers, enters a barrier with all
// ranks, counts together with them, works, reports and (rank 0) commits checkpoints for a while,
// enters a last barrier, exits with 0; or reports in between that its work is finished, and may be
// killed on its way out. Its calls go through its daemon to the coordinator; one that was not
// answered is repeated with the same request id. Where its job can, it waits for another generation
// when its peers are gone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "coordinator/state_machine/actions.h"
#include "meshrun/v1/state.pb.h"
#include "tests/coordinator/simulation/timeline.h"

namespace meshrun::coordinator::simulation {

class Host;
struct RankProcess;
struct Work;
struct World;

// Acts as long as `host` has the process. Both outlive what is planned here.
class RankProgram : public std::enable_shared_from_this<RankProgram> {
 public:
  RankProgram(World& world, Host& host, uint64_t process)
      : world_(world), host_(host), process_(process) {}

  // The process is part of a new generation, the first or a later one.
  void BeginGeneration();
  // It is to stand still at the end of a step.
  void Quiesce();
  // What its thread is blocked in ends: ranks wait in vain.
  void OnVerdict();
  // It does nothing from now on, until somebody ends it, or it is found long after.
  void Hang();

 private:
  using Made = std::function<v1::StateEvent()>;

  RankProcess* self() const;
  const simulation::Work& Work() const;
  v1::Fence Fence() const;
  // In this generation only.
  void After(nanoseconds span, std::function<void()> run);
  void Call(Made make, std::function<void(const MessagePtr&)> done, bool may_be_missing = false);
  void GiveUp();
  // A barrier of all ranks, the generation's `number`-th.
  void Enter(const std::string& name, uint64_t number, std::function<void()> then);
  void FindCheckpoint();
  void Add(int left);
  void Step();
  void Commit(int64_t step);
  // Says that its work is finished, and ends.
  void Finish();

  World& world_;
  Host& host_;
  const uint64_t process_;
  // Counts the generations of this process.
  uint64_t epoch_ = 0;
  int64_t step_ = 0;
  SteadyNanos begun_{0};
  // Step of the newest checkpoint that is known; -1: none.
  int64_t committed_ = -1;
  bool hung_ = false;
  bool quiesce_ = false;
  bool quiet_ = false;
};

}  // namespace meshrun::coordinator::simulation
