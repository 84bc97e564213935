// Unique names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace meshrun {

// Randomness as an interface, so that a simulation repeats.
class IdSource {
 public:
  virtual ~IdSource() = default;
  virtual uint64_t Next() = 0;

  // `length` characters of [0-9a-z], without letters that look like digits.
  std::string Suffix(int length);
};

// From the operating system. Thread-safe.
class RandomIdSource : public IdSource {
 public:
  uint64_t Next() override;
};

// Repeatable, and cheap to make: SplitMix64, of Steele, Lea and Flood. Not thread-safe.
class SeededIdSource : public IdSource {
 public:
  explicit SeededIdSource(uint64_t seed) : state_(seed) {}
  uint64_t Next() override;

 private:
  uint64_t state_;
};

// "geoid" -> "geoid-k3x9w2": readable, short enough to type, 30 random bits.
std::string NewJobId(IdSource& ids, std::string_view name);

// For idempotent calls: 100 random bits.
std::string NewRequestId(IdSource& ids);

}  // namespace meshrun
