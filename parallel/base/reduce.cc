#include "parallel/base/reduce.h"

#include <algorithm>
#include <bit>
#include <type_traits>

// The loops below are written for the compiler to vectorise. They are compiled twice, for the
// machine that all x86-64 hosts have and for AVX2; both give the same bits: each element is
// computed alone, by IEEE operations in the order written, without fused ones.
#if defined(__x86_64__)
#define MESHRUN_HAS_AVX2 1
#endif
#define MESHRUN_INLINE inline __attribute__((always_inline))
// Iterations are independent although `out` may be one of the sources: element i is read before it
// is written, in the same iteration. Clang, with which we only analyse, warns of each loop with
// such a mark that it leaves as it is.
#if defined(__clang__)
#define MESHRUN_INDEPENDENT
#else
#define MESHRUN_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace meshrun {
namespace {

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

// a != a: it is NaN. The first NaN of the sources stays.
struct Min : Sum {
  template <class V>
  static MESHRUN_INLINE V apply(V a, V b) {
    const V smaller = a <= b ? a : b;
    return a != a ? a : smaller;
  }
};

struct Max : Sum {
  template <class V>
  static MESHRUN_INLINE V apply(V a, V b) {
    const V larger = a >= b ? a : b;
    return a != a ? a : larger;
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

// Elements whose values are kept in the first-level cache while more than two sources are added.
constexpr int64_t kBlock = 1024;

template <class Format, class Op>
MESHRUN_INLINE void fold(std::span<const std::byte* const> sources, std::byte* out_bytes,
                         int64_t count, typename Format::Value divisor) {
  using Stored = typename Format::Stored;
  using Result = typename Format::Result;
  using Value = typename Format::Value;
  const auto source = [&](size_t k) { return reinterpret_cast<const Stored*>(sources[k]); };
  const auto last = [&](Value x) { return Format::store(Format::settle(Op::finish(x, divisor))); };
  auto* out = reinterpret_cast<Result*>(out_bytes);
  if (sources.size() == 1) {
    const Stored* a = source(0);
    MESHRUN_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) out[i] = last(Format::load(a[i]));
    return;
  }
  if (sources.size() == 2) {
    const Stored* a = source(0);
    const Stored* b = source(1);
    MESHRUN_INDEPENDENT
    for (int64_t i = 0; i < count; ++i)
      out[i] = last(combine<Format, Op>(Format::load(a[i]), b[i]));
    return;
  }
  alignas(64) Value block[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    const Stored* a = source(0) + begin;
    const Stored* b = source(1) + begin;
    MESHRUN_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) block[i] = combine<Format, Op>(Format::load(a[i]), b[i]);
    size_t k = 2;
    for (; k + 2 < sources.size(); k += 2) {
      a = source(k) + begin;
      b = source(k + 1) + begin;
      MESHRUN_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) {
        block[i] = combine<Format, Op>(combine<Format, Op>(block[i], a[i]), b[i]);
      }
    }
    Result* const target = out + begin;
    a = source(k) + begin;
    if (k + 1 == sources.size()) {
      MESHRUN_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) target[i] = last(combine<Format, Op>(block[i], a[i]));
    } else {
      b = source(k + 1) + begin;
      MESHRUN_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) {
        target[i] = last(combine<Format, Op>(combine<Format, Op>(block[i], a[i]), b[i]));
      }
    }
  }
}

#if defined(MESHRUN_HAS_AVX2)
template <class Format, class Op>
__attribute__((target("avx2"))) void fold_avx2(std::span<const std::byte* const> sources,
                                               std::byte* out, int64_t count,
                                               typename Format::Value divisor) {
  fold<Format, Op>(sources, out, count, divisor);
}
const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
#endif

// One call for the operation and format: what the switches below end in.
struct Call {
  std::span<const std::byte* const> sources;
  std::byte* out;
  int64_t count;
  const Reduction& reduction;

  template <class Format, class Op>
  void run(int64_t elements_per_item = 1) const {
    using Value = typename Format::Value;
    Value divisor{};
    if constexpr (std::is_arithmetic_v<Value>) divisor = static_cast<Value>(reduction.divisor);
    const int64_t n = count * elements_per_item;
#if defined(MESHRUN_HAS_AVX2)
    if (has_avx2) return fold_avx2<Format, Op>(sources, out, n, divisor);
#endif
    fold<Format, Op>(sources, out, n, divisor);
  }
};

template <class T>
void reduce_integers(const Call& call) {
  using Unsigned = Plain<std::make_unsigned_t<T>>;  // which wrap
  using Bytes = Plain<uint8_t>;                     // bits are alike in all types
  switch (call.reduction.op) {
    case ReductionOp::kSum:
      return call.run<Unsigned, Sum>();
    case ReductionOp::kProduct:
      return call.run<Unsigned, Product>();
    case ReductionOp::kMin:
      return call.run<Plain<T>, Min>();
    case ReductionOp::kMax:
      return call.run<Plain<T>, Max>();
    case ReductionOp::kAnd:
      return call.run<Bytes, And>(sizeof(T));
    case ReductionOp::kOr:
      return call.run<Bytes, Or>(sizeof(T));
    case ReductionOp::kXor:
      return call.run<Bytes, Xor>(sizeof(T));
    case ReductionOp::kNone:
    case ReductionOp::kAverage:
      return;
  }
}

void reduce_bools(const Call& call) {
  switch (call.reduction.op) {
    case ReductionOp::kSum:
    case ReductionOp::kMax:
    case ReductionOp::kOr:
      return call.run<Bool, Or>();
    case ReductionOp::kProduct:
    case ReductionOp::kMin:
    case ReductionOp::kAnd:
      return call.run<Bool, And>();
    case ReductionOp::kXor:
      return call.run<Bool, Xor>();
    case ReductionOp::kNone:
    case ReductionOp::kAverage:
      return;
  }
}

// What rounds; least and greatest values never do.
template <class Format>
void reduce_by_rounding(const Call& call) {
  switch (call.reduction.op) {
    case ReductionOp::kSum:
      return call.run<Format, Sum>();
    case ReductionOp::kAverage:
      return call.run<Format, Average>();
    case ReductionOp::kProduct:
      return call.run<Format, Product>();
    default:
      return;
  }
}

template <class Format>
void reduce_floats(const Call& call) {
  switch (call.reduction.op) {
    case ReductionOp::kMin:
      return call.run<Format, Min>();
    case ReductionOp::kMax:
      return call.run<Format, Max>();
    default:
      return reduce_by_rounding<Format>(call);
  }
}

template <class Format>
void reduce_halves(const Call& call) {
  const ReductionOp op = call.reduction.op;
  const bool rounds = op != ReductionOp::kMin && op != ReductionOp::kMax;
  if (rounds && call.reduction.accumulate == Accumulate::kNative) {
    return reduce_by_rounding<Native<Format>>(call);
  }
  if (call.reduction.level == Level::kOnly || call.reduction.partial() != DType::kFloat32) {
    return reduce_floats<Wide<Format>>(call);
  }
  if (call.reduction.level == Level::kSecond) return reduce_by_rounding<WideSecond<Format>>(call);
  // reduce() asks for no average.
  return op == ReductionOp::kSum ? call.run<WideFirst<Format>, Sum>()
                                 : call.run<WideFirst<Format>, Product>();
}

template <class T>
void reduce_complex(const Call& call) {
  switch (call.reduction.op) {
    case ReductionOp::kSum:
      return call.run<Plain<T>, Sum>(2);
    case ReductionOp::kAverage:
      return call.run<Plain<T>, Average>(2);
    case ReductionOp::kProduct:
      return call.run<Plain<Complex<T>>, Product>();
    default:
      return;
  }
}

bool is_integral(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
      return true;
    default:
      return false;
  }
}

bool is_reducible(DType dtype) {
  return is_integral(dtype) || dtype == DType::kFloat16 || dtype == DType::kBFloat16 ||
         dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kComplex64 ||
         dtype == DType::kComplex128;
}

}  // namespace

const char* name_of(ReductionOp op) {
  switch (op) {
    case ReductionOp::kNone:
      return "none";
    case ReductionOp::kSum:
      return "sum";
    case ReductionOp::kAverage:
      return "average";
    case ReductionOp::kProduct:
      return "product";
    case ReductionOp::kMin:
      return "min";
    case ReductionOp::kMax:
      return "max";
    case ReductionOp::kAnd:
      return "bitwise and";
    case ReductionOp::kOr:
      return "bitwise or";
    case ReductionOp::kXor:
      return "bitwise xor";
  }
  return "unknown reduction";  // of a peer's header
}

std::string reduction_problem(ReductionOp op, DType dtype) {
  const auto problem = [&](const char* reason) {
    return std::string(name_of(op)) + " of " + name_of(dtype) + ": " + reason;
  };
  const bool is_complex = dtype == DType::kComplex64 || dtype == DType::kComplex128;
  if (op == ReductionOp::kNone) return "";
  if (!is_reducible(dtype)) return problem("elements of this type are moved, never reduced");
  switch (op) {
    case ReductionOp::kAverage:
      return is_integral(dtype) ? problem("an average needs a floating-point or complex type") : "";
    case ReductionOp::kMin:
    case ReductionOp::kMax:
      return is_complex ? problem("complex numbers have no order") : "";
    case ReductionOp::kAnd:
    case ReductionOp::kOr:
    case ReductionOp::kXor:
      return is_integral(dtype) ? "" : problem("needs an integer type or bool");
    default:
      return "";
  }
}

DType Reduction::partial() const {
  const bool is_half = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  const bool rounds =
      op == ReductionOp::kSum || op == ReductionOp::kAverage || op == ReductionOp::kProduct;
  return is_half && rounds && accumulate == Accumulate::kWide ? DType::kFloat32 : dtype;
}

void reduce(std::span<const std::byte* const> sources, std::byte* out, int64_t count,
            const Reduction& given) {
  if (count <= 0 || sources.empty()) return;
  Reduction reduction = given;
  if (reduction.level == Level::kFirst && reduction.op == ReductionOp::kAverage) {
    reduction.op = ReductionOp::kSum;
  }
  const Call call{sources, out, count, reduction};
  switch (reduction.dtype) {
    case DType::kBool:
      return reduce_bools(call);
    case DType::kUInt8:
      return reduce_integers<uint8_t>(call);
    case DType::kInt8:
      return reduce_integers<int8_t>(call);
    case DType::kInt16:
      return reduce_integers<int16_t>(call);
    case DType::kInt32:
      return reduce_integers<int32_t>(call);
    case DType::kInt64:
      return reduce_integers<int64_t>(call);
    case DType::kUInt16:
      return reduce_integers<uint16_t>(call);
    case DType::kUInt32:
      return reduce_integers<uint32_t>(call);
    case DType::kUInt64:
      return reduce_integers<uint64_t>(call);
    case DType::kFloat16:
      return reduce_halves<Float16>(call);
    case DType::kBFloat16:
      return reduce_halves<BFloat16>(call);
    case DType::kFloat32:
      return reduce_floats<Plain<float>>(call);
    case DType::kFloat64:
      return reduce_floats<Plain<double>>(call);
    case DType::kComplex64:
      return reduce_complex<float>(call);
    case DType::kComplex128:
      return reduce_complex<double>(call);
    default:
      return;
  }
}

}  // namespace meshrun
