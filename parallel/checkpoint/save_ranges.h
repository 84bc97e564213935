// Which ranges of a checkpoint's files a rank writes, and from what memory.
//
//   shared tensors    cut into equal shares for all ranks that see the directory
//   rank 0's          whole, by rank 0
//   pieces            by the ranks of rank 0's group that hold them; those that are not one run of
//                     the file travel first (piece_exchange.h)
//
// Collective over the groups of the pieces. Threads: one at a time. Errors: those of collectives.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "parallel/checkpoint/file_tensors.h"
#include "parallel/checkpoint/range_writer.h"

namespace meshrun::detail {

struct SavePlace {
  // This rank in the group that saves, and which ranks see the directory of rank 0.
  int rank = 0;
  std::vector<bool> sees;
  // Where the groups communicate from.
  c10::Device device = c10::kCPU;
};

// Takes ranges of one file, in order. `keep` holds their memory; null: it is that of the tensors.
using TakeRanges =
    std::function<void(size_t file, std::vector<FileRange> ranges, std::shared_ptr<void> keep)>;

// Ranges of this rank. `wait` is called on all ranks of a group alike between two rounds of its
// exchange.
void list_ranges(const FileTensors& tensors, const ByFile<SafetensorsHeader>& headers,
                 const SavePlace& place, const TakeRanges& take,
                 const std::function<void(c10d::ProcessGroup& group)>& wait);

// Memory for the ranges of one save after another.
class Snapshot {
 public:
  // Copies the bytes of the ranges, which then refer to the copies. Reuses the memory of the save
  // before, which must be written. `is_pinned`: for copies from a GPU.
  void copy(std::vector<std::pair<size_t, std::vector<FileRange>>>& ranges, bool is_pinned);
  // Holds the memory.
  std::shared_ptr<void> keep() const { return memory_; }

 private:
  std::shared_ptr<at::Tensor> memory_;
};

}  // namespace meshrun::detail
