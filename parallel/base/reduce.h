// Element-wise reduction of several sources in a fixed order.
//
//   out[i] = (((sources[0][i] op sources[1][i]) op sources[2][i]) ...)
//
// Every run on every machine gives the same bits: the order is that of the sources, never that of
// arrival, and the compiler fuses no operations (-ffp-contract=off). Pure; the caller has checked
// with reduction_problem().
//
//   sum        +; bool: or; integers wrap; f16 and bf16 add in f32 and round once (kWide), once a
//              level (kWideInLevels), or after each + (kNative)
//   average    the sum, then one division by `divisor`, before the rounding of kWide
//   product    *; bool: and; rounded as sums are
//   min, max   NaN wins, as in LibTorch; bool: and, or
//   and, or, xor   bitwise
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "parallel/base/dtype.h"

namespace meshrun {

enum class ReductionOp : uint8_t {
  kNone = 0,  // moves only
  kSum = 1,
  kAverage = 2,
  kProduct = 3,
  kMin = 4,
  kMax = 5,
  kAnd = 6,
  kOr = 7,
  kXor = 8,
};
const char* name_of(ReductionOp op);

enum class Accumulate : uint8_t { kWide = 0, kNative = 1, kWideInLevels = 2 };

// Level of a reduction in two levels: the first level reduces a part of the sources to a partial,
// the second one all partials to the result. What is computed in f32 stays in f32 between the
// levels and is rounded once (kWide), or is rounded between them to half the bytes (kWideInLevels).
// An average is divided once, in the second level.
enum class Level : uint8_t { kOnly = 0, kFirst = 1, kSecond = 2 };

struct Reduction {
  ReductionOp op = ReductionOp::kNone;
  DType dtype = DType::kFloat32;
  Accumulate accumulate = Accumulate::kWide;
  int64_t divisor = 1;  // kAverage: the group's size
  Level level = Level::kOnly;

  // The type of a partial.
  DType partial() const;
  // The types of what is read and of what is written.
  DType source() const { return level == Level::kSecond ? partial() : dtype; }
  DType target() const { return level == Level::kFirst ? partial() : dtype; }

  Reduction at(Level which) const {
    Reduction result = *this;
    result.level = which;
    return result;
  }
};

// Empty where the pair is allowed, else a sentence: no average of integers or booleans, no order of
// complex numbers, bitwise on integers and booleans only, no arithmetic on 8-bit floats.
std::string reduction_problem(ReductionOp op, DType dtype);

// `count` elements each, aligned for their type. `out` may be one of the sources if it has their
// type; otherwise it overlaps none.
void reduce(std::span<const std::byte* const> sources, std::byte* out, int64_t count,
            const Reduction& reduction);

}  // namespace meshrun
