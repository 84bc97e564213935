// Checks the arguments of a collective and derives what its ranks move: extents per rank along a
// dimension counted from the front, or a sentence that says what is wrong.
//
// Pure, without LibTorch's libraries. A wrong value never throws, since other ranks are waiting and
// must learn of it: the sentence goes into CollectiveSpec::problem. It names the argument, its
// value and what was expected.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "c10/util/ArrayRef.h"
#include "parallel/base/extents.h"
#include "parallel/base/sizes.h"
#include "parallel/comm/interface/cut.h"

namespace meshrun {

// What this rank's tensor is, of the tensor that the pieces make up.
enum class Role {
  kPiece,     // its piece: sizes[rank] along dim
  kWhole,     // all of it: sum(sizes)
  kTemplate,  // no part of it: its extent along dim is ignored, and sizes are needed
};

struct Pieces {
  std::string problem;  // empty: none; else nothing below holds
  int64_t dim = 0;      // not negative
  Extents extents;      // by rank
  int64_t total = 0;    // their sum
};

// `shape`: of this rank's tensor, of role `role`. 0 <= rank < world.
Pieces cut(Role role, const Sizes& sizes, at::IntArrayRef shape, int64_t dim, int rank, int world);

// A dim that counts from the front, or a problem. `name`: of the argument.
std::string wrap_dim(std::string_view name, int64_t& dim, int64_t ndim);
// Whether sizes[rank] is the `extent` of this rank's piece along `dim`. There are as many sizes as
// ranks.
std::string check_piece(std::string_view name, at::IntArrayRef sizes, int rank, int64_t extent,
                        int64_t dim);

}  // namespace meshrun
