// The saves of a CheckpointDirectory, one after another: what all ranks agree on, the ranges of
// this rank, and the save that goes on in the background. See checkpoint.h.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "parallel/checkpoint/background_save.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/commit.h"
#include "parallel/checkpoint/save_ranges.h"
#include "parallel/checkpoint/site_plan.h"
#include "parallel/checkpoint/sites.h"

namespace meshrun::detail {

class CheckpointWriter {
 public:
  CheckpointWriter(std::string path, CheckpointOptions options);
  // Waits for what goes on in the background, and says what became of it if that is an error.
  ~CheckpointWriter();

  // Collective. Returns when all is written, or, `in_background`, when this rank's ranges are
  // copied.
  void save(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
            const TrainingProgress& progress, const KeptValues& kept, bool in_background);
  // Collective. Waits for the save in the background, and raises what became of it.
  void wait();
  bool is_writing() const;

 private:
  // Calls the first with ranges of this rank by their place in the task's files, and the second
  // between two rounds of an exchange.
  using ListRanges =
      std::function<void(const TakeRanges&, const std::function<void(c10d::ProcessGroup&)>&)>;
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
  using WeakGroup = c10::weak_intrusive_ptr<c10d::ProcessGroup>;

  // The save in the background is of a world that is over: nobody waits for it.
  void drop_of_other_world(const Group& group);
  // Collective. Which ranks see one directory.
  const Sites& sites_of(const Group& group, c10::Device device, const std::string& number);
  // Collective with several sites. That of the save before where the tensors are laid out alike.
  const SitePlan& plan_of(const FileTensors& tensors, const Sites& sites, const Group& group,
                          c10::Device device);
  // Collective. Waits for the save on all ranks, and raises what became of it.
  void await(const Group& group, c10::Device device, BackgroundSave& save);

  // Without files, manifest and writer.
  SaveTask task_of(const SitePlan& plan, const Sites& sites, int rank,
                   const CommitRight& right) const;
  // Gives the save this rank's ranges, or copies of them. Collective over the groups of the pieces.
  void add_ranges(BackgroundSave& save, const ListRanges& list, c10::Device device,
                  const std::shared_ptr<void>& keep);
  void add_copies(BackgroundSave& save, const ListRanges& list, c10::Device device);

  const std::string path_;
  const CheckpointOptions options_;
  // Those of the last save's group.
  std::optional<WeakGroup> sites_group_;
  Sites sites_;
  // Plan of the last save, and the digest of its tensors' outline, if there is one site.
  SitePlan plan_;
  std::optional<int64_t> planned_outline_;
  Snapshot snapshot_;
  const std::shared_ptr<CommitHook> hook_;
  std::shared_ptr<BackgroundSave> background_;
  // The save before, which may still remove files, and its number.
  std::shared_ptr<BackgroundSave> previous_;
  std::string previous_number_;
  std::optional<WeakGroup> background_group_;
  c10::Device background_device_ = c10::kCPU;
};

}  // namespace meshrun::detail
