// Indices into a cut dimension: which of them this rank has.
//
// Errors: an index out of the whole range raises IndexError on the CPU, on the ranks that have the
// index. On another device it fails an assertion of that device, as in LibTorch's own kernels: the
// host does not wait, and a later call on that device raises.
//
// Internal to parallel/shard/operators.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace meshrun {

// The piece [offset, offset + extent) of a dimension with `whole` elements.
struct PieceOf {
  int64_t offset = 0;
  int64_t extent = 0;
  int64_t whole = 0;
};

struct Lookup {
  at::Tensor index;   // from `offset`; where absent, any that is in range
  at::Tensor absent;  // bool: another rank has it
};

// Negative indices count from the back where `wraps`.
Lookup lookup(const at::Tensor& index, const PieceOf& piece, bool wraps);
// With one row of zeros behind it, so that a rank without rows has one.
at::Tensor with_spare_row(const at::Tensor& local, int64_t dim);
// As lookup(), with the row behind the piece for what is absent.
at::Tensor index_or_spare(const at::Tensor& index, const PieceOf& piece, bool wraps);

// Asserts that indices from the front are in [0, whole): queued on their device; the CPU raises
// c10::Error at once.
void assert_in_range(const at::Tensor& from_front, int64_t whole);

}  // namespace meshrun
