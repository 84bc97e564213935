// A checkpoint on a file system that this rank sees: which is the newest, whether it fits, and the
// reading of what a rank needs.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint/checked_file.h"
#include "core/checkpoint/step_directory.h"
#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/kept_values.h"
#include "parallel/checkpoint/targets.h"

namespace meshrun::detail {

// Threads: any, one call at a time for each target. Errors: DamagedCheckpoint, std::runtime_error.
class CheckpointReader {
 public:
  // Opens its files, and compares their lengths and headers.
  explicit CheckpointReader(StepDirectory step);

  // Names, dtypes and shapes.
  Outline outline(FileKind kind) const;
  // Reads and compares part `part` of `parts` of all bytes.
  void verify(size_t part, size_t parts) const;
  void read(const Target& target, uint64_t from, std::span<char> to) const;
  // Reads what the targets need, and nothing else beyond whole chunks.
  void fill(std::vector<Target>& targets) const;

 private:
  const StepDirectory step_;
  ByFile<std::unique_ptr<CheckedFile>> files_;
};

struct FoundCheckpoint {
  std::string path;
  // What to do if it is damaged, as the end of a sentence.
  std::string remedy;
  Contents contents;
};

// The checkpoint of `step` in `directory`, or where that is absent the complete one written last;
// absent: there is none. It fits: names, dtypes and shapes are those of this run. CheckpointOptions
// says what `former_file` is. Raises Mismatch, DamagedCheckpoint, std::runtime_error.
std::optional<FoundCheckpoint> find_newest(const std::string& directory,
                                           std::optional<int64_t> step,
                                           const std::map<std::string, std::string>& identity,
                                           const std::string& former_file, const Parts& parts,
                                           const torch::optim::Optimizer& optimizer,
                                           const KeptValues& kept);

}  // namespace meshrun::detail
