#include "parallel/base/reduce.h"

#include <algorithm>
#include <type_traits>

#include "parallel/base/reduction_elements.h"

// The loops below are written for the compiler to vectorise. They are compiled twice, for the
// machine that all x86-64 hosts have and for AVX2; both give the same bits: each element is
// computed alone, by IEEE operations in the order written, without fused ones.
#if defined(__x86_64__)
#define MESHRUN_HAS_AVX2 1
#endif
// Iterations are independent although `out` may be one of the sources: element i is read before it
// is written, in the same iteration. Clang, with which we only analyse, warns of each loop with
// such a mark that it leaves as it is.
#if defined(__clang__)
#define MESHRUN_INDEPENDENT
#else
#define MESHRUN_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace meshrun {
namespace elementwise {
namespace {

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

void reduce_type(const Call& call) {
  switch (call.reduction.dtype) {
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

}  // namespace
}  // namespace elementwise

void reduce(std::span<const std::byte* const> sources, std::byte* out, int64_t count,
            const Reduction& given) {
  if (count <= 0 || sources.empty()) return;
  Reduction reduction = given;
  if (reduction.level == Level::kFirst && reduction.op == ReductionOp::kAverage) {
    reduction.op = ReductionOp::kSum;
  }
  elementwise::reduce_type({sources, out, count, reduction});
}

}  // namespace meshrun
