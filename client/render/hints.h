// What a known last line of a rank means, and what to do about it. Pure.
#pragma once

#include <string>

#include "meshrun/v1/common.pb.h"

namespace meshrun::client {

// A sentence for people where the rank's last lines or its error file say something that is known
// to puzzle; else empty.
std::string HintFor(const v1::RankExit& exit);

}  // namespace meshrun::client
