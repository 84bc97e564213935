// What a coordinator that does not lead answers.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "coordinator/leadership/leadership.h"

namespace meshrun::coordinator {

// UNAVAILABLE, with the leader's address in the detail as far as `leadership` knows it:
// "coordinator b is a standby: a leads at HOST:PORT". `why`: what is known where nobody leads; may
// be empty.
absl::Status NotLeading(std::string_view name, const Leadership& leadership, std::string_view why);

}  // namespace meshrun::coordinator
