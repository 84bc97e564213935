#include "parallel/base/digest.h"

namespace meshrun {

Digest& Digest::add(std::span<const int64_t> values) {
  add(static_cast<int64_t>(values.size()));
  for (const int64_t value : values) add(value);
  return *this;
}

uint64_t digest_of(std::string_view text) {
  Digest digest;
  for (const char c : text) digest.add(c);
  return digest.value();
}

}  // namespace meshrun
