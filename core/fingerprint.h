// A hash of a text that is the same on every host and with every standard library, unlike
// std::hash. Not for secrets.
#pragma once

#include <cstdint>
#include <string_view>

namespace meshrun {

// FNV-1a.
inline uint64_t Fingerprint(std::string_view text) {
  uint64_t hash = 0xcbf2'9ce4'8422'2325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100'0000'01b3;
  return hash;
}

}  // namespace meshrun
