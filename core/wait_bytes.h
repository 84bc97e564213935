// Reports and verdicts of a WaitBoard as bytes, for who carries them over a connection of its own.
// The messages of proto/meshrun/v1/waiting.proto, without naming them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/wait_board.h"

namespace meshrun {

std::string Serialize(const WaitReport& report);
std::string Serialize(const WaitVerdict& verdict);
// Absent: not what Serialize makes.
std::optional<WaitReport> ParseWaitReport(std::string_view bytes);
std::optional<WaitVerdict> ParseWaitVerdict(std::string_view bytes);

}  // namespace meshrun
