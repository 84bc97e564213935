#include "core/ids.h"

#include <sys/random.h>

#include <stdexcept>

namespace meshrun {

std::string IdSource::Suffix(int length) {
  static constexpr std::string_view kAlphabet = "0123456789abcdefghjkmnpqrstvwxyz";
  static_assert(kAlphabet.size() == 32);
  std::string out;
  uint64_t bits = 0;
  int left = 0;
  for (int i = 0; i < length; ++i) {
    if (left < 5) {
      bits = Next();
      left = 60;
    }
    out.push_back(kAlphabet[bits & 31]);
    bits >>= 5;
    left -= 5;
  }
  return out;
}

uint64_t RandomIdSource::Next() {
  uint64_t value = 0;
  if (getrandom(&value, sizeof(value), 0) != sizeof(value)) {
    throw std::runtime_error("getrandom failed: the system has no source of randomness");
  }
  return value;
}

uint64_t SeededIdSource::Next() {
  state_ += 0x9e3779b97f4a7c15;
  uint64_t mixed = state_;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

std::string NewJobId(IdSource& ids, std::string_view name) {
  return std::string(name) + "-" + ids.Suffix(6);
}

std::string NewRequestId(IdSource& ids) { return ids.Suffix(20); }

}  // namespace meshrun
