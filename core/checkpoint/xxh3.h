// XXH3-128 (https://github.com/Cyan4973/xxHash): notices damage at the speed of memory. Not against
// an adversary. Pure; no errors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace meshrun {

struct Xxh3Hash {
  uint64_t high = 0;
  uint64_t low = 0;

  bool operator==(const Xxh3Hash&) const = default;
  // 32 digits, as `xxh128sum` prints it.
  std::string Hex() const;
};

Xxh3Hash Xxh3(std::string_view bytes);

}  // namespace meshrun
