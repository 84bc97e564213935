// The files of a checkpoint that this rank sees, and the reading of what a rank needs.
//
// Threads: any, one call at a time for each target. Errors: DamagedCheckpoint, std::runtime_error.
#pragma once

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
#include "parallel/checkpoint/region_exchange.h"
#include "parallel/checkpoint/targets.h"

namespace meshrun::detail {

class CheckpointReader {
 public:
  // Opens its files, and compares their lengths and headers. If several hosts have written it, the
  // files of others may be missing.
  explicit CheckpointReader(StepDirectory step);
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const StepDirectory& step() const { return step_; }
  // A file's name, and a number that ranks which see the same file have in common.
  std::map<std::string, int64_t> files() const;
  // Whether each kind of tensors is whole in one file, and this rank sees all of them.
  bool has_whole_files() const;
  // What a file stores.
  Outline outline(const std::string& file) const;
  // Reads and compares part `part` of `parts` of the bytes of a file.
  void verify(const std::string& file, size_t part, size_t parts) const;
  // What the files hold of tensors.
  const std::vector<HeldRegion>& held() const { return held_; }
  // Bytes of held()[index] from `from` on.
  void read(size_t index, uint64_t from, std::span<char> to) const;
  // Reads what the targets need, and nothing else beyond whole chunks. Where has_whole_files().
  void fill(std::vector<Target>& targets) const;

 private:
  // Where a held region lies.
  struct Place {
    const CheckedFile* file = nullptr;
    uint64_t begin = 0;
  };

  void add(const std::string& name, const Manifest::File& file);

  const StepDirectory step_;
  std::map<std::string, std::unique_ptr<CheckedFile>> files_;
  std::vector<HeldRegion> held_;
  std::vector<Place> places_;
};

// The kind of tensors in a file; absent: it is none of a checkpoint's.
std::optional<FileKind> kind_of_file(const std::string& name);

}  // namespace meshrun::detail
