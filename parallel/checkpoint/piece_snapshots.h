// Copies in memory of a training whose state lies in pieces on several ranks, as Gemini keeps them
// (Wang et al., SOSP 2023): every rank has a copy of its own pieces and of another rank's, which is
// on another host where there is one (snapshot_keepers.h). When a rank or a host is lost, the
// others have its pieces.
//
//   snapshots.take(...);       // now and then, all ranks alike
//   snapshots.restore(...);    // in another world, of any size
//
// What all ranks have alike is copied, and not sent. A snapshot is whole when all copies have
// arrived, and take() returns then: so the one that is restored is never older than the last
// take(). Until then there must be the one before. So a rank needs twice the memory of its own
// state and of another rank's pieces.
//
// Threads: one at a time.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/checkpoint/kept_values.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

class PieceSnapshots {
 public:
  // Where a snapshot is taken.
  struct World {
    GroupArgument::Handle group;
    uint64_t generation = 0;  // another number in each world, ascending
    std::vector<int> nodes;   // the host of each rank
  };

  PieceSnapshots();
  ~PieceSnapshots();

  // Collective over the world, after `step` steps on all ranks. Errors: those of saved_state() and
  // of the group; the same on all ranks, c10::ValueError for a tensor of which ranks have other
  // values, and c10::NotImplementedError for one that they hold in pieces of several cuts.
  void take(const World& world, int64_t step, const torch::nn::Module& module,
            torch::optim::Optimizer& optimizer, const KeptValues& kept);
  // Drops those of other worlds.
  void keep_only(uint64_t generation);
  // The step of the newest snapshot that was taken in this world; absent: none was.
  std::optional<int64_t> newest(uint64_t generation) const;

  struct Restored {
    std::optional<int64_t> step;
    // Why there is none although there are snapshots; on all ranks.
    std::string problem;
  };
  // Collective over the group of any world: all ranks get the newest snapshot that is whole. Ranks
  // may have none. Random generators: those of the same rank where the world has as many ranks as
  // the snapshot's had. Raises c10::ValueError, the same on all ranks: before anything is changed,
  // where the module, the optimizer or the kept values are others than the snapshot's; at the end,
  // where a `load` function of a kept value raises.
  Restored restore(const GroupArgument::Handle& group, torch::nn::Module& module,
                   torch::optim::Optimizer& optimizer, const KeptValues& kept);

  // Memory that two snapshots like the newest take on this rank.
  uint64_t bytes() const;

 private:
  struct Slot;

  // Collective. Raises c10::NotImplementedError on all ranks.
  void check_cuts(const World& world, c10::Device device, const Slot& slot) const;
  // Collective: sends this rank's pieces, and gets another rank's.
  void exchange(const World& world, c10::Device device, Slot& slot) const;

  std::array<std::unique_ptr<Slot>, 2> slots_;
  size_t newest_ = 0;
  // World of the last one that was taken, and its number there.
  uint64_t generation_ = 0;
  int64_t number_ = 0;
};

}  // namespace meshrun
