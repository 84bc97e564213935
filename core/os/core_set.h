// Sets of the host's logical cores, and which of them a thread may run on.
// Threads: any.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace meshrun::os {

// Their numbers, ascending, each once.
using CoreSet = std::vector<int>;

// As Linux lists them: "0-3,8"; a line end may follow. Absent: it is no such list.
std::optional<CoreSet> ParseCoreSet(std::string_view text);

// Those that the calling thread may run on. Empty: Linux does not say.
CoreSet OwnCores();

// Lets the calling thread, and what it starts from now on, run on these alone. False: errno says
// why.
bool RunOn(const CoreSet& cores);

}  // namespace meshrun::os
