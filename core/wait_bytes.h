// Reports and verdicts of a WaitBoard as bytes, for code that sends them over its own connections
// and may not include protobuf. The bytes are the messages of proto/meshrun/v1/waiting.proto.
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
