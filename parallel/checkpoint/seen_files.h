// Which ranks see which files of a checkpoint: all of them all, or those of a host its own.
//
// Threads: one at a time. Errors: those of collectives; DamagedCheckpoint and std::runtime_error of
// verify().
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "parallel/checkpoint/read_checkpoint.h"
#include "parallel/checkpoint/stored_contents.h"

namespace meshrun::detail {

class SeenFiles {
 public:
  // Collective over `group`. `reader` has what this rank sees; null: nothing. Both must outlive
  // this.
  SeenFiles(c10d::ProcessGroup& group, c10::Device device, const CheckpointReader* reader);

  // The lowest rank that sees the checkpoint; absent: none does.
  std::optional<int> root() const;
  // Every rank can read all that it needs, from files of whole tensors.
  bool is_whole_everywhere() const { return is_whole_everywhere_; }
  // Reads and compares this rank's share of what it sees: all ranks together all of it.
  void verify() const;
  // Collective: on the root what all files store that some rank sees; elsewhere a part of it.
  OutlinesByFile outlines() const;

 private:
  c10d::ProcessGroup& group_;
  const c10::Device device_;
  const CheckpointReader* const reader_;
  // By rank: CheckpointReader::files(); absent: it sees nothing.
  std::vector<std::optional<std::map<std::string, int64_t>>> by_rank_;
  bool is_whole_everywhere_ = true;
};

}  // namespace meshrun::detail
