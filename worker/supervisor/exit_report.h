// What a rank left behind when it ended: the last lines of its output, and its torchelastic error
// file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "meshrun/v1/common.pb.h"
#include "meshrun/v1/supervisor.pb.h"

namespace meshrun::worker {

inline constexpr size_t kMostLastLines = 20;
inline constexpr size_t kMostLastBytes = 4096;

// The last lines of `tail`, which is the end of a file; `cut` when the file is longer, so that its
// first line may be incomplete. Empty lines at the end are left out; a line rewritten with carriage
// returns (a progress bar) counts in its last form. Always UTF-8. Pure.
std::vector<std::string> LastLines(std::string_view tail, bool cut);

// The message of an error file, in both of its shapes, {"message": {"message": "Type: text", ...}}
// and {"message": "text", "timestamp": 1}. Empty when there is none. Pure.
std::string ErrorFileMessage(std::string_view json);

// Fills last_lines (from stderr, or from stdout if stderr is empty) and error_message of a rank
// that failed.
void ReadLeftBehind(const v1::RankLaunch& launch, v1::RankExit* exit);

}  // namespace meshrun::worker
