// Index arithmetic of the kernels, the same on the device and on the host, where it is tested.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define MESHRUN_HOST_DEVICE __host__ __device__ __forceinline__
#define MESHRUN_UNCHECKED MESHRUN_HOST_DEVICE
#else
#define MESHRUN_HOST_DEVICE inline
// Reads whole aligned blocks, also where they reach beyond an allocation of the host.
#define MESHRUN_UNCHECKED __attribute__((no_sanitize("address"))) inline
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

// N elements that one access moves: at most 16 bytes, and aligned to all of them.
template <typename T, int N>
struct alignas(sizeof(T) * N) Vector {
  static_assert(sizeof(T) * N <= 16);
  T element[N];
};

}  // namespace meshrun::cuda
