// One number that stands for data which ranks, or processes of a host, compare. Pure; no errors.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace meshrun {

// 64 bits of a stream of integers; stable across builds and hosts. Not against an adversary.
class Digest {
 public:
  Digest& add(int64_t value) {
    // The finalizer of MurmurHash3, keyed by what came before.
    uint64_t x = state_ * 0x9fb21c651e98df25 + static_cast<uint64_t>(value);
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccd;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53;
    state_ = x ^ (x >> 33);
    return *this;
  }
  Digest& add(std::span<const int64_t> values);
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0x9e3779b97f4a7c15;
};

uint64_t digest_of(std::string_view text);

}  // namespace meshrun
