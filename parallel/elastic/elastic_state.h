// What an elastic training hands from one world to the next: model, optimizer with its options,
// random generators, what the program keeps beside them, and the number of steps done. See
// elastic_context.h.
//
//   ElasticState state(elastic, *network, optimizer);
//   state.keep("scheduler", scheduler);                 // kept_values.h says what can be kept
//   state.keep("ema", *ema);
//   state.seed_each_step(17);
//   int64_t first = 0;
//   if (const auto done = state.restore()) {            // from memory
//     first = *done;
//   } else if (const auto saved = checkpoints.load(*network, optimizer, state.kept())) {
//     first = saved->step;
//   }
//   for (const int64_t step : state.steps(first, last)) {
//     optimizer.zero_grad();
//     const at::Tensor loss = loss_of(model, step);
//     loss.backward();                                  // averages the gradients over the ranks
//     state.update([&] {                                // state changes here alone
//       optimizer.step();
//       scheduler.step();
//       average(*ema, *network);
//     });
//     if (step % 100 == 99) checkpoints.save(*network, optimizer, {step + 1}, state.kept());
//   }
//
// A rank that is lost anywhere in this loop leaves every other one with the state before update(),
// or with the one after it. Ranks then go on from the highest count. They must have the same
// parameters, moments and kept values; buffers are those of the rank whose state is taken.
//
// A world has one ElasticState. A second optimizer is kept: state.keep("critic", critic_adam).
//
// In a loop without update() a rank may be lost while others wait between two statements that
// change the state. Version counters of parameters, moments and kept tensors show that; such a
// memory is refused, with one line, and never trained on. Buffers (running statistics) change in
// the forward pass: they are copied when a step is done, so that a batch counts once.
//
// Random generators: with seed_each_step() every rank draws what an undisturbed run would have
// drawn. Without it see spread_memory(): ranks that drew alike go on alike; else a rank that goes
// on from its own place has its own stream as of the last update(), and a new one a stream that is
// derived from the root's.
//
// Threads: one at a time. Errors: those of collectives, and of training_memory.h; c10::Error for a
// call that comes at the wrong moment, as said below.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "parallel/base/arguments.h"
#include "parallel/base/no_collectives.h"
#include "parallel/checkpoint/kept_values.h"
#include "parallel/checkpoint/training_memory.h"
#include "parallel/elastic/elastic_context.h"
#include "parallel/elastic/elastic_steps.h"
#include "parallel/elastic/step_seed.h"

namespace meshrun {

class ElasticState {
 public:
  // Module and optimizer must outlive this. Says to the coordinator that this rank goes on in
  // process, if it can: if each rank has all of the module and of the optimizer's moments. A state
  // in pieces can with snapshot_every().
  ElasticState(ElasticContext& context, torch::nn::Module& module,
               torch::optim::Optimizer& optimizer);
  // Leaves the state in the context, for the next world.
  ~ElasticState();
  ElasticState(const ElasticState&) = delete;
  ElasticState& operator=(const ElasticState&) = delete;

  // Adds a value of the program's own to the state, as KeptValues::keep() takes it; write a tensor
  // in place. Before restore(). Schedulers and functions are used in commit(), update() and the
  // loop over steps().
  template <typename... Value>
  void keep(const std::string& name, Value&&... value) {
    check_keep(name);
    kept_.keep(name, std::forward<Value>(value)...);
    check_kept(name);
  }
  // For a checkpoint, which then holds the same values.
  const KeptValues& kept() const { return kept_; }

  // From now on the default generators of the CPU and of the module's device are seeded at the
  // beginning of each step of steps(): as torch::manual_seed(step_seed(seed, step, rank)) does,
  // `rank` being this rank's in the world. Random operations on sharded tensors are seeded alike on
  // all ranks, with step_seed(seed, step, 0). Where several ranks must draw alike give their common
  // `stream` instead of the rank; sharded tensors then take that one's numbers, too.
  template <SeedNumber Seed>
  void seed_each_step(Seed seed) {
    seed_ = static_cast<uint64_t>(seed);
    stream_ = std::nullopt;
  }
  template <SeedNumber Seed>
  void seed_each_step(Seed seed, IntArgument stream) {
    seed_ = static_cast<uint64_t>(seed);
    stream_ = stream;
  }
  // The same for one step, in a loop of the program's own. Raises without seed_each_step().
  void seed_step(IntArgument step) const;

  // For a state in pieces on several ranks (FNO over a group, ShardTensors, ZeRO), which no rank
  // can hand on by itself: after every `steps` steps each rank copies its state, and another rank,
  // on another host where there is one, gets a copy of its pieces. After a loss restore() takes all
  // ranks back to the newest snapshot: at most `steps` steps are taken again, no file is read, and
  // the survivors' processes stay. 0, as without a call: there are no snapshots. Two ranks that
  // have each other's copies may be lost at once; restore() is then as in a new training.
  //
  // Costs twice the memory of a rank's own state and of another rank's pieces, which rank 0 prints;
  // the time to copy that, and to send a rank's pieces to another one: training waits. commit() and
  // the end of an update() are collective then. They raise c10::ValueError on all ranks where ranks
  // have other values of what is not in pieces, buffers apart. A state that is whole on each rank
  // needs no snapshots, and outside meshrun and on another backend than ucx there is nobody to go
  // on: nothing is done.
  // All ranks call it alike, before restore(). Raises c10::ValueError for less than 0.
  void snapshot_every(IntArgument steps);

  // Collective over the world: all ranks take the state of the one that has done most steps, or the
  // newest snapshot.
  // Returns that number; absent where no rank has a state: nothing is changed. What the program
  // sets afterwards (a learning rate) wins. Comes before the first step, else that raises. Raises
  // c10::ValueError on all ranks where one keeps other names, and where ranks that have done the
  // same steps have other values.
  std::optional<int64_t> restore();

  // Calls `change`, which steps the optimizer and all that goes with it; when it returns, one more
  // step is done. A collective inside it raises CollectiveForbiddenError, on every rank, with or
  // without a launcher, if each rank has all of the module and of the optimizer's moments. If they
  // lie in pieces on several ranks, snapshots alone are handed on in memory, and nothing is
  // forbidden. What `change` raises leaves, and the state counts
  // as half-done until commit().
  // Raises where it is called twice in a step of steps(), or within itself, and where the state was
  // changed since the last update(). A loop of the program's own says commit(steps) before it
  // begins: 0, or the steps of what restore() or a checkpoint gave.
  void update(const std::function<void()>& change);
  // The two halves of update(). Callers that have no function use them, such as a block of Python.
  // The same thread calls end_update(), also after an exception: `is_whole` false then leaves the
  // state half-done until commit().
  void begin_update();
  void end_update(BoolArgument is_whole = true);

  // `steps` are done, and the state is whole as it is now.
  void commit(IntArgument steps);

  // Steps first to last - 1. `first` are done when the loop begins. The end of a step raises where
  // the state was changed after update(): a rank that is lost there would take that along on some
  // ranks only. A step without update() is committed at its end, unless it leaves gradients to a
  // later one: that one's update() takes the steps since the last update together, and a rank that
  // is lost before it makes them be taken again. After every `agree_every` steps (at least 1, else
  // c10::ValueError) the ranks agree whether to stand still; a loop that wants checkpoints at that
  // point uses update() and ElasticContext::stand_still() itself.
  ElasticSteps steps(IntArgument first, IntArgument last, IntArgument agree_every = 10);

 private:
  friend class ElasticContext;  // stand_still() takes a snapshot

  // `is_watched`: see StateRecorder::record. What changes within update() alone need not be.
  void commit(int64_t steps, bool is_watched);
  void check_keep(const std::string& name) const;
  void check_kept(const std::string& name) const;
  // Raises where the state is not that of the last update(). `since`: "after the", "since the".
  void check_unchanged(const char* since) const;
  void check_restored() const;
  // Collective. Raises c10::ValueError on all ranks where one keeps other names, has its state
  // whole and others in pieces, or has snapshots after other steps.
  void check_alike() const;
  // Collective. The newest snapshot that is whole, as restore() returns it.
  std::optional<int64_t> restore_snapshot();
  // Collective. The state of `step` is there, from `source`: it is this world's from now on.
  void go_on_after(int64_t step, std::optional<int64_t> digest, const std::string& source);
  // Collective, if a snapshot of steps_ is due, or if `at_once` and there is none.
  void take_snapshot_if_due(bool at_once = false);
  // Collective. Requires snapshots.
  void take_snapshot();
  // The newest one of this world; absent: there is none, or they are not wanted.
  std::optional<int64_t> newest_snapshot() const;
  // This step leaves gradients to a later one's update().
  bool accumulates() const;
  // Says that update() has changed parameters which no optimizer that is known here steps.
  void tell_of_other_optimizers();
  void begin_step(int64_t step, int64_t first, int64_t last);
  void end_step(int64_t done);
  // The greatest of the ranks' values. Compares their generators on the way.
  int64_t agree(int64_t own);
  // Why the state is not that of steps_; empty: it is.
  std::string half_done() const;

  ElasticContext& context_;
  torch::nn::Module& module_;
  torch::optim::Optimizer& optimizer_;
  const bool is_whole_;
  const int rank_;
  const int world_size_;
  KeptValues kept_;
  StateRecorder recorder_;  // of a whole state
  int64_t steps_ = -1;
  // Under way, in a loop over steps().
  std::optional<int64_t> step_;
  bool is_changing_ = false;
  // From begin_update() to end_update().
  std::optional<NoCollectives> no_collectives_;
  bool was_restored_ = false;
  // Whether update() made the state that is recorded.
  bool is_updated_ = false;
  // Parameters that no optimizer known here steps.
  TensorVersions others_;
  bool are_others_listed_ = false;
  // Seeds of the generators when they were compared last, if several ranks had the same states.
  std::optional<uint64_t> alike_;
  // Digest of the state that restore() gave, until something is committed.
  std::optional<int64_t> restored_;
  std::optional<uint64_t> seed_;
  std::optional<int64_t> stream_;
  int64_t snapshot_every_ = 0;
  bool is_memory_told_ = false;
  // This rank's parameters, if there are snapshots; and a digest of their bits, where writes are
  // not counted.
  TensorVersions pieces_;
  std::optional<int64_t> piece_bits_;
  // Generation and rank, as logs name them; cleared once the first step after restore() is logged.
  std::string place_;
};

}  // namespace meshrun
