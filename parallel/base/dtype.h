// Element types as the engine knows them: a size, a name, and whether they can be reduced.
//
// The values travel in headers (header_check.h) and stand in flight records: never renumber.
#pragma once

#include <cstdint>

namespace meshrun {

enum class DType : uint8_t {
  kBool = 0,
  kUInt8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kBFloat16 = 7,
  kFloat32 = 8,
  kFloat64 = 9,
  kComplex64 = 10,
  kComplex128 = 11,
  kUInt16 = 12,
  kUInt32 = 13,
  kUInt64 = 14,
  // Moved, never reduced.
  kComplex32 = 15,
  kFloat8E4M3Fn = 16,
  kFloat8E5M2 = 17,
  kFloat8E4M3Fnuz = 18,
  kFloat8E5M2Fnuz = 19,
};

int64_t element_size(DType dtype);

// As LibTorch's Python spelling: "float32", "complex64".
const char* name_of(DType dtype);

}  // namespace meshrun
