#include "parallel/shard/random/philox.h"

#include <algorithm>

namespace meshrun {
namespace {

constexpr uint32_t kMultiplier0 = 0xD251'1F53;
constexpr uint32_t kMultiplier1 = 0xCD9E'8D57;
constexpr uint32_t kWeyl0 = 0x9E37'79B9;
constexpr uint32_t kWeyl1 = 0xBB67'AE85;
constexpr int kRounds = 10;

// Blocks in lanes, so that the compiler computes several with one instruction.
constexpr size_t kLanes = 16;
struct Lanes {
  uint32_t word[4][kLanes];
};

template <size_t N>
void run_rounds(uint32_t (&c)[4][N], uint32_t key0, uint32_t key1) {
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < N; ++i) {
      const uint64_t product0 = static_cast<uint64_t>(kMultiplier0) * c[0][i];
      const uint64_t product1 = static_cast<uint64_t>(kMultiplier1) * c[2][i];
      c[0][i] = static_cast<uint32_t>(product1 >> 32) ^ c[1][i] ^ key0;
      c[2][i] = static_cast<uint32_t>(product0 >> 32) ^ c[3][i] ^ key1;
      c[1][i] = static_cast<uint32_t>(product1);
      c[3][i] = static_cast<uint32_t>(product0);
    }
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
}

uint32_t low(uint64_t value) { return static_cast<uint32_t>(value); }
uint32_t high(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

}  // namespace

PhiloxBlock philox(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  uint32_t lanes[4][1] = {{counter[0]}, {counter[1]}, {counter[2]}, {counter[3]}};
  run_rounds(lanes, key[0], key[1]);
  return {lanes[0][0], lanes[1][0], lanes[2][0], lanes[3][0]};
}

void WordSequence::read(uint64_t begin, size_t count, uint32_t* words) const {
  size_t done = 0;
  while (done < count) {
    const uint64_t first = begin + done;
    const uint64_t block = first / 4;
    Lanes lanes;
    for (size_t i = 0; i < kLanes; ++i) {
      lanes.word[0][i] = low(block + i);
      lanes.word[1][i] = high(block + i);
      lanes.word[2][i] = low(operation);
      lanes.word[3][i] = high(operation);
    }
    run_rounds(lanes.word, low(seed), high(seed));
    const size_t skipped = first % 4;
    const size_t taken = std::min(count - done, 4 * kLanes - skipped);
    for (size_t i = 0; i < taken; ++i) {
      words[done + i] = lanes.word[(skipped + i) % 4][(skipped + i) / 4];
    }
    done += taken;
  }
}

}  // namespace meshrun
