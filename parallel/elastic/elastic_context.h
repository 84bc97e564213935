// Training that lives through changes of the world: a rank whose peer is lost, or whose job grows,
// drops its process groups, joins the next generation, and goes on from memory.
//
//   ElasticContext elastic;
//   elastic.run([&] {
//     Network network;                                    // in each world anew
//     torch::optim::Adam optimizer(network->parameters());
//     ElasticState state(elastic, *network, optimizer);
//     const int64_t first = state.restore().value_or(0);  // from the rank that is farthest
//     DistributedDataParallel model(network);
//     for (const int64_t step : state.steps(first, last)) {
//       optimizer.zero_grad();
//       loss_of(model, batch_of(step)).backward();        // the global batch is the step's alone
//       state.update([&] { optimizer.step(); });          // state changes here alone
//     }
//   });
//
// run() calls its argument in each world: it must make there whatever holds a process group. A step
// that was under way when a peer was lost is taken again; the ranks go on from the highest step
// that one of them has done, so the state takes each step once.
//
// Only a loss of peers and the coordinator's wish to change the world lead to another generation:
// the typed errors of parallel/base/collective_errors.h that say so, and calls of the world's store
// that is over. Every other exception leaves run(), and so do these where no other generation
// follows.
//
// Ranks continue in process only in meshrun, on ucx, and if the model and the optimizer are whole
// on each rank or have snapshots (ElasticState::snapshot_every; it tells the coordinator so). All
// others behave as without this: the job's ranks are started anew, and read a checkpoint.
//
// In meshrun run() ends with a barrier of all ranks, and each then reports to the coordinator that
// the work is finished. From the first such report on, no end of a rank or of a host starts the job
// again: one that is killed afterwards leaves it SUCCEEDED. What must not happen twice, such as
// printing the result, belongs into at_end(). Since the report is of all the work, run() is called
// once in such a process: after its report another call raises c10::Error. So does a call within
// the body of another one. Outside meshrun run() calls the body once, then the functions of
// at_end(), without a barrier and without a report. It can be called again, and the error of a lost
// peer leaves it.
//
// A body has one ElasticState: phases of a training share it, in one loop. All ranks end it after
// the same steps, else run() raises c10::Error on all of them.
//
// Threads: one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "c10/util/Exception.h"
#include "parallel/base/arguments.h"
#include "parallel/checkpoint/piece_snapshots.h"
#include "parallel/checkpoint/training_memory.h"

namespace meshrun {

namespace agent {
class Agent;
}
class ElasticState;

// The coordinator has stopped the job while this rank was waiting for its next generation.
class ElasticStoppedError : public c10::Error {
  using Error::Error;
};

namespace detail {

// What stand_still() throws: all ranks have left the world after the same step. A body that runs in
// another language lets it through to run().
struct StoodStill {};

}  // namespace detail

struct ElasticOptions {
  // Called in each world but the first, when it was joined.
  std::function<void()> on_joined = [] {};
  // True: this process is to end, and does not wait for another generation.
  std::function<bool()> stop_requested = [] { return false; };
  // One sentence when a world is left or joined; stderr where absent.
  std::function<void(const std::string&)> log;
};

class ElasticContext {
 public:
  // The world must have been joined (DistributedManager::initialize).
  explicit ElasticContext(ElasticOptions options = {});
  ~ElasticContext();

  // Raises what `body` raises, RendezvousError and ElasticStoppedError; and c10::Error, before
  // `body`, where a run() has reported that this generation's work is finished. When it returns,
  // all ranks have done their part.
  void run(const std::function<void()>& body);
  // For the body. `act` is called once, after the last barrier and the report that the work is
  // finished and before run() returns; never where the body is run again. It outlives the body, and
  // calls no collectives: a peer may have ended. A rank that is killed between its report and `act`
  // has no second chance. What `act` raises leaves run().
  void at_end(std::function<void()> act);

  // The coordinator wants the ranks to stand still at the end of a step; ranks hear of it at
  // different times, and must agree on the step.
  bool is_quiesce_wanted() const { return signs_->quiesce; }
  // It also wants a checkpoint first.
  bool is_save_wanted() const { return signs_->save; }
  // Leaves the world after `step` steps, for the next one: does not return. All ranks call it after
  // the same step. A state in pieces that has snapshots gets one before.
  [[noreturn]] void stand_still(IntArgument step);

 private:
  friend class ElasticState;
  // What the agent's thread says. Outlives this: the agent keeps it.
  struct Signs {
    std::atomic<bool> quiesce = false;
    std::atomic<bool> save = false;
  };

  void listen();
  // Raises where a run() in this world has reported.
  void check_unfinished() const;
  // After the body: the last barrier, and the report. Raises what the barrier raises, and
  // PeerLostError where the coordinator knows of a loss before any rank had reported.
  void finish();
  // This rank's last barrier has failed: whether another rank has passed it.
  bool another_has_finished(agent::Agent& agent) const;
  // Says to the coordinator that this process takes other generations, once in each.
  void announce();
  // Leaves this world and joins the next. `failure`: why; raised again where none follows within
  // `patience`.
  void rejoin(const std::exception_ptr& failure, std::chrono::milliseconds patience);
  std::shared_ptr<agent::Agent> await_next(std::shared_ptr<agent::Agent> agent,
                                           const std::exception_ptr& failure,
                                           std::chrono::steady_clock::time_point until);
  void say(const std::string& text) const;

  const ElasticOptions options_;
  const std::shared_ptr<Signs> signs_ = std::make_shared<Signs>();
  bool is_announced_ = false;
  // The one that is alive.
  ElasticState* state_ = nullptr;
  // The steps of the ElasticState of this world that has ended.
  std::optional<int64_t> ended_after_;
  std::vector<std::function<void()>> at_end_;
  // Generation in which this rank reported that it finished.
  std::optional<uint64_t> reported_generation_;
  // Memory of the last ElasticState that ended.
  std::optional<TrainingMemory> memory_;
  // Reason why there is no memory, which the next restore() prints.
  std::string refusal_;
  // Copies of a state in pieces.
  std::unique_ptr<PieceSnapshots> snapshots_;
};

}  // namespace meshrun
