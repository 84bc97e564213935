// The state of a coordinator that has it alone: a directory of this host's.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "coordinator/state_flags.h"
#include "coordinator/state_store/state_store.h"

namespace meshrun::coordinator {

// Opens --state-dir, and does what --restored says. NOT_FOUND: --restored, and there is no state;
// else the errors of SqliteStateStore::Open.
absl::StatusOr<std::unique_ptr<StateStore>> OpenOwnState(const StateFlags& flags);

}  // namespace meshrun::coordinator
