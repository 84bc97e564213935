// Rows of STATE_TABLE_META that the state machine and the stores share.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

// The state is a copy, and its roll call is not over: state_copy.h. The value is the name of the
// restore; empty: it has none.
inline constexpr std::string_view kCopyKey = "copy";
// With the name of a restore whose roll call is over behind it. Such rows have no value.
inline constexpr std::string_view kConfirmedPrefix = "confirmed/";
// Why everything is refused: StateMachine::outdated().
inline constexpr std::string_view kOutdatedKey = "outdated";

inline v1::StateRow MetaRow(std::string_view key, std::string value) {
  v1::StateRow row;
  row.set_table(v1::STATE_TABLE_META);
  row.set_key(std::string(key));
  row.set_value(std::move(value));
  return row;
}

}  // namespace meshrun::coordinator
