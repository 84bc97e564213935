// Moves a state from SQLite to another store: what `--import` does.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "coordinator/state_store/state_store.h"

namespace meshrun::coordinator {

// Writes all rows of `file`, a backup or the file of a state directory whose coordinator has
// stopped, to `store` in one commit, except the term: the store begins with its own. The same
// commit declares the state a copy (state_copy.h). The file stays as it is. Errors: NOT_FOUND or
// INVALID_ARGUMENT (it is no such file), ALREADY_EXISTS (the store has a state), and those of the
// stores.
absl::Status ImportState(const std::string& file, StateStore& store);

// Whether `file` may be imported. Errors as above.
absl::Status CheckImport(const std::string& file);

}  // namespace meshrun::coordinator
