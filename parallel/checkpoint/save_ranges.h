// Which ranges of a checkpoint's files a rank writes, and from what memory, where all ranks see one
// directory. site_ranges.h has the others.
//
//   shared tensors    cut into equal shares for the ranks that write
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
  // This rank in the group that saves, and which ranks write to the same files.
  int rank = 0;
  std::vector<bool> writers;
  // Where the groups communicate from.
  c10::Device device = c10::kCPU;
};

// Takes ranges of one file, in order. `keep` holds their memory; null: it is that of the tensors.
using TakeRanges =
    std::function<void(size_t file, std::vector<FileRange> ranges, std::shared_ptr<void> keep)>;

// Bytes of a tensor that is alive until they are written: `count` of them, from `from` on, for the
// place `begin` of a file.
FileRange range_of(const StoredValues& bytes, uint64_t begin, uint64_t from, uint64_t count);

// Whether rank 0 of the ranks that save is in `group`, too. `rank`: this one among those that save.
// Collective over `group`.
bool has_rank_0(c10d::ProcessGroup& group, c10::Device device, int rank);

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
