// Index arithmetic of the kernels, the same on the device and on the host, where it is tested.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define MESHRUN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define MESHRUN_HOST_DEVICE inline
#endif

// Before a loop whose number of rounds is known, and before one that costs registers if unrolled.
#if defined(__CUDA_ARCH__)
#define MESHRUN_UNROLL _Pragma("unroll")
#define MESHRUN_ROLLED _Pragma("unroll 1")
#else
#define MESHRUN_UNROLL
#define MESHRUN_ROLLED
#endif

namespace meshrun::cuda {

template <typename Index>
struct QuotientAndRemainder {
  Index quotient;
  Index remainder;
};

// Division by what is known when the kernel is launched.
template <typename Index>
class Divider;

template <>
class Divider<uint64_t> {
 public:
  Divider() = default;
  explicit Divider(uint64_t divisor) : divisor_(divisor) {}

  MESHRUN_HOST_DEVICE QuotientAndRemainder<uint64_t> divide(uint64_t value) const {
    return {value / divisor_, value % divisor_};
  }

 private:
  uint64_t divisor_ = 1;
};

// By a multiplication (Granlund and Montgomery 1994), for values and divisors below 2^31.
template <>
class Divider<uint32_t> {
 public:
  Divider() : Divider(1) {}
  explicit Divider(uint32_t divisor) : divisor_(divisor) {
    while ((uint64_t{1} << shift_) < divisor) ++shift_;
    multiplier_ = static_cast<uint32_t>(
        ((uint64_t{1} << 32) * ((uint64_t{1} << shift_) - divisor)) / divisor + 1);
  }

  MESHRUN_HOST_DEVICE QuotientAndRemainder<uint32_t> divide(uint32_t value) const {
#if defined(__CUDA_ARCH__)
    const uint32_t high = __umulhi(value, multiplier_);
#else
    const auto high = static_cast<uint32_t>((uint64_t{value} * multiplier_) >> 32);
#endif
    const uint32_t quotient = (high + value) >> shift_;
    return {quotient, value - quotient * divisor_};
  }

 private:
  uint32_t divisor_ = 1;
  uint32_t multiplier_ = 1;
  uint32_t shift_ = 0;
};

// Division of values whose size shows only at run time, and is most often small.
class SizedDivider {
 public:
  SizedDivider() = default;
  // For values below `values`.
  SizedDivider(uint64_t divisor, uint64_t values)
      : wide_(divisor), is_small_(values <= uint64_t{1} << 31 && divisor < uint64_t{1} << 31) {
    if (is_small_) narrow_ = Divider<uint32_t>(static_cast<uint32_t>(divisor));
  }

  MESHRUN_HOST_DEVICE QuotientAndRemainder<uint64_t> divide(uint64_t value) const {
    if (!is_small_) return wide_.divide(value);
    const auto [quotient, remainder] = narrow_.divide(static_cast<uint32_t>(value));
    return {quotient, remainder};
  }

 private:
  Divider<uint64_t> wide_;
  Divider<uint32_t> narrow_;
  bool is_small_ = true;
};

// N elements that one access moves: at most 16 bytes, and aligned to all of them.
template <typename T, int N>
struct alignas(sizeof(T) * N) Vector {
  static_assert(sizeof(T) * N <= 16);
  T element[N];
};

}  // namespace meshrun::cuda
