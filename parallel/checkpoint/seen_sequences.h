// The sequence of the newest checkpoint that this process has seen in a directory. Ranks that live
// on bring it to a rank 0 on another host, whose next checkpoint is above it. Threads: any.
#pragma once

#include <cstdint>
#include <string>

namespace meshrun::detail {

// 0: none.
int64_t seen_sequence(const std::string& path);
void note_sequence(const std::string& path, int64_t sequence);

}  // namespace meshrun::detail
