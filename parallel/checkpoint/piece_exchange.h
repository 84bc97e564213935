// Pieces of tensors on their way to the ranks that write them: pieces that are not one run of the
// file each travel, and every rank gets runs, in rounds that take little memory.
//
// Collective over the pieces' group. Threads: one at a time. Errors: those of all_to_all_v.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "parallel/checkpoint/file_tensors.h"

namespace meshrun::detail {

// A tensor in pieces, and where it lies.
struct TravellingTensor {
  size_t file = 0;
  uint64_t begin = 0;  // in the file
  const FileTensor* tensor = nullptr;
};

// Bytes of a file that this rank has got, and what holds their memory.
struct ArrivedBytes {
  size_t file = 0;
  uint64_t begin = 0;
  const char* memory = nullptr;
  uint64_t bytes = 0;
  std::shared_ptr<void> keep;
};

// Exchanges the tensors, which are in the same order on all ranks of their common group. `take`
// gets what arrives here, perhaps nothing, in each round. All ranks have as many rounds, of
// `round_bytes` in all. `device`: where the group communicates from.
void exchange_pieces(const std::vector<TravellingTensor>& tensors, c10::Device device,
                     uint64_t round_bytes,
                     const std::function<void(std::vector<ArrivedBytes>)>& take);

}  // namespace meshrun::detail
