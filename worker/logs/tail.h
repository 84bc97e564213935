// Where the last lines of a file begin.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace meshrun::worker {

// Reads `size` bytes at `offset`; fewer only when the file is shorter by now.
using ReadAt = std::function<std::string(uint64_t offset, size_t size)>;

// Offset of the first of the last `lines` lines of the bytes from `begin` to `end`; `begin` when
// there are no more, `end` when lines is 0. It looks back 64 MiB at most. A newline at the end
// closes its line. Reads backwards, in blocks. Pure, except `read_at`.
uint64_t TailOffset(uint64_t begin, uint64_t end, int64_t lines, const ReadAt& read_at);

}  // namespace meshrun::worker
