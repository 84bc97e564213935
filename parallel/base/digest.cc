#include "parallel/base/digest.h"

namespace meshrun {

Digest& Digest::add(int64_t value) {
  // The finalizer of MurmurHash3, keyed by what came before.
  uint64_t x = state_ * 0x9fb21c651e98df25 + static_cast<uint64_t>(value);
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccd;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53;
  state_ = x ^ (x >> 33);
  return *this;
}

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
