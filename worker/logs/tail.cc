#include "worker/logs/tail.h"

#include <algorithm>

namespace meshrun::worker {
namespace {

constexpr uint64_t kBlock = 1 << 16;
// A file without line ends may be of any size: a rank makes one of a terabyte in no time.
constexpr uint64_t kFurthest = uint64_t{64} << 20;

}  // namespace

uint64_t TailOffset(uint64_t begin, uint64_t end, int64_t lines, const ReadAt& read_at) {
  if (lines <= 0) return end;
  uint64_t block_end = end;
  while (block_end > begin && end - block_end < kFurthest) {
    const uint64_t block_begin = block_end - std::min(block_end - begin, kBlock);
    const std::string block = read_at(block_begin, block_end - block_begin);
    for (size_t i = block.size(); i-- > 0;) {
      const uint64_t after = block_begin + i + 1;
      // The newline at the end closes the last line and begins no other.
      if (block[i] != '\n' || after == end) continue;
      if (--lines == 0) return after;
    }
    block_end = block_begin;
  }
  return block_end;
}

}  // namespace meshrun::worker
