// The state of a coordinator that has it alone: a directory of this host's.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "coordinator/state_flags.h"
#include "coordinator/state_store/state_store.h"

namespace meshrun::coordinator {

// Opens --state-dir, and declares a copy where --restored is given. Errors: NOT_FOUND where
// --restored finds no state, and those of SqliteStateStore::Open and of DeclareCopy.
absl::StatusOr<std::unique_ptr<StateStore>> OpenOwnState(const StateFlags& flags);

}  // namespace meshrun::coordinator
