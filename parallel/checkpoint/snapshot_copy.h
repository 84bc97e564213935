// One rank's part of a snapshot (piece_snapshots.h), as it lies in memory and travels to the rank
// that keeps a copy of it.
//
//   length of the head | head, which lists the parts that are sent | these parts | the other parts
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/checkpoint/region_exchange.h"
#include "parallel/checkpoint/saved_state.h"

namespace meshrun::detail {

// In the order in which snapshots were taken.
struct SnapshotId {
  uint64_t generation = 0;
  int64_t number = 0;
  int64_t step = 0;

  auto operator<=>(const SnapshotId&) const = default;
};

struct SnapshotCopy {
  struct Part {
    HeldRegion elements;
    uint64_t offset = 0;  // from the first part on
    uint64_t bytes = 0;
  };

  SnapshotId id;
  std::vector<Part> parts;
  at::Tensor memory;        // bytes
  uint64_t begin = 0;       // of the first part
  uint64_t sent_bytes = 0;  // of the memory, from its beginning on

  at::Tensor bytes_of(const Part& part) const;
};

// Copies what this rank has of the state. Sent is what another rank cannot have: pieces, and what
// is rank 0's alone. `spare`: memory that is used if it is large enough, or an undefined tensor.
SnapshotCopy copy_state(const SnapshotId& id, const FileTensors& tensors, int rank,
                        at::Tensor spare);

// A tensor of so many bytes, in the memory of `spare` if that is large enough.
at::Tensor bytes_in(at::Tensor spare, uint64_t bytes);

// The copy that a message holds; its memory is the message's.
SnapshotCopy decode_copy(at::Tensor message);

}  // namespace meshrun::detail
