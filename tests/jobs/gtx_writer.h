// GTX files for tests.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <string>

namespace meshrun::geoid {

// By default the poles and four meridians.
struct GtxHeader {
  double south = -90;
  double west = -180;
  double latitude_step = 90;
  double longitude_step = 90;
  int32_t rows = 3;
  int32_t columns = 4;
};

// Values follow only where the header's sides are small enough to be meant.
inline std::string gtx_bytes(
    const GtxHeader& header,
    const std::function<float(int, int)>& metres = [](int, int) { return 0.0F; }) {
  std::string bytes;
  const auto append = [&bytes](uint64_t value, int count) {
    for (int shift = 8 * (count - 1); shift >= 0; shift -= 8) {
      bytes += static_cast<char>(value >> shift & 0xff);
    }
  };
  append(std::bit_cast<uint64_t>(header.south), 8);
  append(std::bit_cast<uint64_t>(header.west), 8);
  append(std::bit_cast<uint64_t>(header.latitude_step), 8);
  append(std::bit_cast<uint64_t>(header.longitude_step), 8);
  append(static_cast<uint32_t>(header.rows), 4);
  append(static_cast<uint32_t>(header.columns), 4);
  if (header.rows > 10'000) return bytes;
  for (int row = 0; row < header.rows; ++row) {
    for (int column = 0; column < header.columns; ++column) {
      append(std::bit_cast<uint32_t>(metres(row, column)), 4);
    }
  }
  return bytes;
}

}  // namespace meshrun::geoid
