#include "client/checkpoint/elements.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace meshrun::client {
namespace {

static_assert(std::numeric_limits<long double>::digits >= 64);

// A float of IEEE's form: a sign, `exponent_bits`, `mantissa_bits`.
template <int exponent_bits, int mantissa_bits>
double Ieee(uint32_t bits) {
  constexpr int kBias = (1 << (exponent_bits - 1)) - 1;
  constexpr uint32_t kMostExponent = (1u << exponent_bits) - 1;
  const bool negative = (bits >> (exponent_bits + mantissa_bits) & 1) != 0;
  const uint32_t exponent = bits >> mantissa_bits & kMostExponent;
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  double value = 0;
  if (exponent == kMostExponent) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - kBias - mantissa_bits);
  } else {
    value = std::ldexp(mantissa | 1u << mantissa_bits,
                       static_cast<int>(exponent) - kBias - mantissa_bits);
  }
  return negative ? -value : value;
}

double Brain(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

// It has no infinities, and NaN only where all bits are set: OCP's 8-bit floats, torch's
// float8_e4m3fn.
double E4m3(uint32_t bits) {
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<double>::quiet_NaN();
  if ((bits & 0x78) != 0x78) return Ieee<4, 3>(bits);
  const double value = 256 + 32 * (bits & 7);
  return (bits & 0x80) != 0 ? -value : value;
}

// An exponent alone: powers of 2 without a sign.
double E8m0(uint32_t bits) {
  return bits == 0xff ? std::numeric_limits<double>::quiet_NaN()
                      : std::ldexp(1.0, static_cast<int>(bits) - 127);
}

std::vector<double> MakeTable(double (*number)(uint32_t), uint32_t size) {
  std::vector<double> table(size);
  for (uint32_t bits = 0; bits < size; ++bits) table[bits] = number(bits);
  return table;
}

}  // namespace

const double* FloatTable(std::string_view dtype) {
  if (dtype == "F16") {
    static const auto* const table = new std::vector<double>(MakeTable(Ieee<5, 10>, 1 << 16));
    return table->data();
  }
  if (dtype == "BF16") {
    static const auto* const table = new std::vector<double>(MakeTable(Brain, 1 << 16));
    return table->data();
  }
  if (dtype == "F8_E4M3") {
    static const auto* const table = new std::vector<double>(MakeTable(E4m3, 1 << 8));
    return table->data();
  }
  if (dtype == "F8_E5M2") {
    static const auto* const table = new std::vector<double>(MakeTable(Ieee<5, 2>, 1 << 8));
    return table->data();
  }
  if (dtype == "F8_E8M0") {
    static const auto* const table = new std::vector<double>(MakeTable(E8m0, 1 << 8));
    return table->data();
  }
  return nullptr;
}

}  // namespace meshrun::client
