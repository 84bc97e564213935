// Elements of tensors as numbers, exactly: long double has the 64 bits of the widest integer.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace meshrun::client {

// An element of type T, which Wide holds exactly.
template <typename T, typename Wide>
struct PlainDecoder {
  using Value = Wide;
  static constexpr size_t kBytes = sizeof(T);
  Value operator()(const char* bytes) const {
    T value;
    std::memcpy(&value, bytes, sizeof(value));
    return static_cast<Value>(value);
  }
};

struct ComplexDecoder {
  using Value = std::complex<double>;
  static constexpr size_t kBytes = 8;
  Value operator()(const char* bytes) const {
    const PlainDecoder<float, double> part;
    return {part(bytes), part(bytes + 4)};
  }
};

// An element whose bits are the index of its number.
template <typename Bits>
struct TableDecoder {
  using Value = double;
  static constexpr size_t kBytes = sizeof(Bits);
  const double* table;
  Value operator()(const char* bytes) const { return table[PlainDecoder<Bits, Bits>()(bytes)]; }
};

// The numbers of F16, BF16, F8_E4M3, F8_E5M2 or F8_E8M0, by their bits; null for others.
const double* FloatTable(std::string_view dtype);

// Calls `take` with the dtype's decoder. False: the dtype is not known.
template <typename Take>
bool WithDecoder(std::string_view dtype, const Take& take) {
  if (const double* const table = FloatTable(dtype); table != nullptr) {
    if (dtype.starts_with("F8")) {
      take(TableDecoder<uint8_t>{table});
    } else {
      take(TableDecoder<uint16_t>{table});
    }
  } else if (dtype == "F32") {
    take(PlainDecoder<float, double>());
  } else if (dtype == "F64") {
    take(PlainDecoder<double, long double>());
  } else if (dtype == "C64") {
    take(ComplexDecoder());
  } else if (dtype == "BOOL" || dtype == "U8") {
    take(PlainDecoder<uint8_t, double>());
  } else if (dtype == "I8") {
    take(PlainDecoder<int8_t, double>());
  } else if (dtype == "U16") {
    take(PlainDecoder<uint16_t, double>());
  } else if (dtype == "I16") {
    take(PlainDecoder<int16_t, double>());
  } else if (dtype == "U32") {
    take(PlainDecoder<uint32_t, double>());
  } else if (dtype == "I32") {
    take(PlainDecoder<int32_t, double>());
  } else if (dtype == "U64") {
    take(PlainDecoder<uint64_t, long double>());
  } else if (dtype == "I64") {
    take(PlainDecoder<int64_t, long double>());
  } else {
    return false;
  }
  return true;
}

}  // namespace meshrun::client
