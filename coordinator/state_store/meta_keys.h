// Keys of STATE_TABLE_META that the state machine and the stores share.
#pragma once

#include <string_view>

namespace meshrun::coordinator {

// The state is a copy, and its roll call is not over: state_copy.h. The value is the name of the
// restore; empty: it has none.
inline constexpr std::string_view kCopyKey = "copy";
// With the name of a restore whose roll call is over behind it. Such rows have no value.
inline constexpr std::string_view kConfirmedPrefix = "confirmed/";
// Why everything is refused: StateMachine::outdated().
inline constexpr std::string_view kOutdatedKey = "outdated";

}  // namespace meshrun::coordinator
