// How the loops of reduce.cc read, combine and write elements: formats of elements, and operations
// on values. A loop is compiled for each pair that reduce() needs. All functions are inlined, since
// each loop is compiled for several machines.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#define MESHRUN_INLINE inline __attribute__((always_inline))

namespace meshrun::elementwise {

// How elements lie in memory (Stored; Result where they are written), what they are computed in
// (Value), and what happens to a value after each operation (settle).
template <class T>
struct Plain {
  using Stored = T;
  using Result = T;
  using Value = T;
  static MESHRUN_INLINE Value load(Stored x) { return x; }
  static MESHRUN_INLINE Value settle(Value x) { return x; }
  static MESHRUN_INLINE Stored store(Value x) { return x; }
};

struct Bool : Plain<uint8_t> {
  static MESHRUN_INLINE Value load(Stored x) { return x != 0; }
};

template <class T>
struct Complex {
  T real, imaginary;
};

struct BFloat16 {
  static MESHRUN_INLINE float load(uint16_t x) {
    return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
  }
  static MESHRUN_INLINE uint16_t store(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // to nearest, ties to even
    return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
  }
};

// With ?: compilers may put what computes an operand behind a branch, and the loop is not
// vectorised.
MESHRUN_INLINE uint32_t choose(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

// Without branches, tables or the F16C instructions, whose NaNs differ.
struct Float16 {
  static MESHRUN_INLINE float load(uint16_t x) {
    const uint32_t magnitude = static_cast<uint32_t>(x & 0x7fff) << 13;
    // Shifted, the exponent is 112 too low; the product also makes subnormal numbers normal.
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
    const uint32_t infinite = choose(magnitude >= 0x0f800000, 0x7f800000, 0);
    const uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | infinite | sign);
  }
  // As c10::detail::fp16_ieee_from_fp32_value: adding a number of the right exponent makes the
  // float unit round, to nearest and ties to even, at the bit where a half ends.
  static MESHRUN_INLINE uint16_t store(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint32_t sign = bits & 0x80000000;
    const uint32_t doubled = bits << 1;
    const float magnitude = std::bit_cast<float>(bits & 0x7fffffff);
    const float saturated = magnitude * 0x1p112f * 0x1p-110f;
    const uint32_t exponent = doubled & 0xff000000;
    const uint32_t bias = exponent < 0x71000000 ? 0x71000000 : exponent;
    const float rounded = std::bit_cast<float>((bias >> 1) + 0x07800000) + saturated;
    const uint32_t half = std::bit_cast<uint32_t>(rounded);
    const uint32_t finite = (half >> 13 & 0x7c00) + (half & 0x0fff);
    return static_cast<uint16_t>(sign >> 16 | choose(doubled > 0xff000000, 0x7e00, finite));
  }
};

// Computes in f32, rounds once, at the end.
template <class Format>
struct Wide {
  using Stored = uint16_t;
  using Result = uint16_t;
  using Value = float;
  static MESHRUN_INLINE Value load(Stored x) { return Format::load(x); }
  static MESHRUN_INLINE Value settle(Value x) { return x; }
  static MESHRUN_INLINE Stored store(Value x) { return Format::store(x); }
};

// The first level leaves f32, the second reads it.
template <class Format>
struct WideFirst : Wide<Format> {
  using Result = float;
  static MESHRUN_INLINE Result store(float x) { return x; }
};
template <class Format>
struct WideSecond : Wide<Format> {
  using Stored = float;
  static MESHRUN_INLINE float load(Stored x) { return x; }
};

// Rounds after each operation.
template <class Format>
struct Native : Wide<Format> {
  static MESHRUN_INLINE float settle(float x) { return Format::load(Format::store(x)); }
};

// Operations. `finish` is applied once, to the last value.

struct Sum {
  template <class V>
  static MESHRUN_INLINE V apply(V a, V b) {
    return static_cast<V>(a + b);
  }
  template <class V>
  static MESHRUN_INLINE V finish(V x, V) {
    return x;
  }
};

struct Average : Sum {
  template <class V>
  static MESHRUN_INLINE V finish(V x, V divisor) {
    return x / divisor;
  }
};

struct Product : Sum {
  template <class V>
  static MESHRUN_INLINE V apply(V a, V b) {
    // 16-bit factors would be multiplied as ints and overflow.
    if constexpr (std::is_same_v<V, uint16_t>)
      return static_cast<V>(uint32_t{a} * b);
    else
      return static_cast<V>(a * b);
  }
  template <class T>
  static MESHRUN_INLINE Complex<T> apply(Complex<T> a, Complex<T> b) {
    return {a.real * b.real - a.imaginary * b.imaginary,
            a.real * b.imaginary + a.imaginary * b.real};
  }
};

// The first NaN of the sources stays. V may be a vector, which has no isnan().
struct Min : Sum {
  template <class V>
  static MESHRUN_INLINE V apply(V a, V b) {
    const V smaller = a <= b ? a : b;
    return a != a ? a : smaller;  // NOLINT(misc-redundant-expression)
  }
};

struct Max : Sum {
  template <class V>
  static MESHRUN_INLINE V apply(V a, V b) {
    const V larger = a >= b ? a : b;
    return a != a ? a : larger;  // NOLINT(misc-redundant-expression)
  }
};

struct And : Sum {
  template <class V>
  static MESHRUN_INLINE V apply(V a, V b) {
    return static_cast<V>(a & b);
  }
};

struct Or : Sum {
  template <class V>
  static MESHRUN_INLINE V apply(V a, V b) {
    return static_cast<V>(a | b);
  }
};

struct Xor : Sum {
  template <class V>
  static MESHRUN_INLINE V apply(V a, V b) {
    return static_cast<V>(a ^ b);
  }
};

template <class Format, class Op>
MESHRUN_INLINE typename Format::Value combine(typename Format::Value a, typename Format::Stored b) {
  return Format::settle(Op::apply(a, Format::load(b)));
}

}  // namespace meshrun::elementwise
