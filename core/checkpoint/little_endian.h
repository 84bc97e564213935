// Whole numbers as files of this directory store them.
#pragma once

#include <cstdint>
#include <string_view>

namespace meshrun {

// The number that all of `bytes` are, least significant first. Requires at most 8 of them.
inline uint64_t LittleEndian(std::string_view bytes) {
  uint64_t number = 0;
  for (size_t k = bytes.size(); k-- > 0;) {
    number = number << 8 | static_cast<unsigned char>(bytes[k]);
  }
  return number;
}

}  // namespace meshrun
