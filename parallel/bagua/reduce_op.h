// The reductions of Bagua's surface, with its numbers, and what they are in c10d.
//
// SUM and PRODUCT take any dtype (bool: or, and; PRODUCT of complex numbers on ucx alone); AVG
// takes floating-point and complex numbers; MIN and MAX all numbers except complex ones; BOR, BAND
// and BXOR integers and bool. Any other pair of reduction and dtype is an error of the collective,
// on all ranks.
//
// Corresponds to bagua.torch_api.communication.ReduceOp; a type of its own beside c10d::ReduceOp,
// whose numbers differ. Pure.
#pragma once

#include <optional>
#include <string>

#include "torch/csrc/distributed/c10d/Types.hpp"

namespace meshrun::bagua {

enum class ReduceOp : int {
  SUM = 0,
  PRODUCT = 1,
  MIN = 2,
  MAX = 3,
  BOR = 7,
  BAND = 8,
  BXOR = 9,
  AVG = 10,
};

// "SUM"; "ReduceOp(5)" for an unknown number.
std::string to_string(ReduceOp op);

// Absent: the number is unknown.
std::optional<c10d::ReduceOp> to_c10d(ReduceOp op);

}  // namespace meshrun::bagua
