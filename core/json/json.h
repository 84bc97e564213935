// Messages as JSON for scripts. Pure.
//
// Names and enums as protobuf's own JSON writes them, and every plain field is there, so that a
// script need not ask. What differs serves scripts: 64-bit integers are numbers, an environment is
// an object by name, bytes are text (UTF-8 as it is, every other byte as \xNN; a digest in
// hexadecimal), and a rank that a signal ended has no exitCode. Times are RFC 3339 in UTC;
// durations are text as in "5s" or "0.250s". NaN and infinities are the strings "NaN", "Infinity"
// and "-Infinity", as JSON has no such numbers. Message fields, optional ones and those of a oneof
// are absent where they are not set.
#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "core/clock.h"

namespace meshrun {

// Indented by two blanks, with a newline at the end.
std::string ToJson(const google::protobuf::Message& message);

// The same in one line, without a newline: for streams.
std::string ToJsonLine(const google::protobuf::Message& message);

// As ToJson writes times: "2026-11-23T07:15:00Z", with a fraction where there is one.
std::string JsonTime(WallNanos at);

}  // namespace meshrun
