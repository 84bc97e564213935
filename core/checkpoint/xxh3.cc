#include "core/checkpoint/xxh3.h"

#include <fmt/format.h>

// The code of the header itself: no library is linked.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace meshrun {

std::string Xxh3Hash::Hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Xxh3Hash Xxh3(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

}  // namespace meshrun
