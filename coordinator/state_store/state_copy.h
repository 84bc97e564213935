// Whether a state is a copy whose roll call (state_machine/roll_call.h) is still to be held.
//
//   true --declared: --restored, --import--> copy --the roll call's last transaction--> true
//
// The row "copy" of META says so, from before the first term on the copy until the transaction that
// ends the roll call erases it. Each coordinator that begins a term looks for it, whatever its own
// flags are. So a leader that dies before that transaction leaves the roll call to the next one,
// and one that dies after it leaves none.
//
// No row can tell a state from its copy: a snapshot of etcd, or of a directory, has them all. What
// the flag --restored means is therefore decided by what is known beside the rows:
//   - with a name, it is one restore. A row "confirmed/NAME" is there when its roll call is
//     over, and the flag declares nothing more;
//   - without one, it is about the state as this coordinator has found it. The flag declares
//     nothing where another coordinator has taken that state over since.
// In either case it declares a copy where most workers have proved that the state is one (the row
// "outdated").
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/state_store/state_store.h"

namespace meshrun::coordinator {

// After BeginTerm. Errors: those of the store.
absl::StatusOr<bool> IsCopy(StateStore& store);

// Whether the roll call that was to end with this term has done so. Errors: those of the store.
absl::StatusOr<bool> IsRollCallOver(StateStore& store, uint64_t term);

struct Restored {
  // The one of --restored; empty: none.
  std::string name;
  // Whether another coordinator has taken the state over since this one has found it. Asked once
  // the rows are read, so that what it does after the answer ends in FAILED_PRECONDITION. Null: no.
  std::function<absl::StatusOr<bool>()> is_in_use = nullptr;
};
// What --restored does, before BeginTerm. Idempotent. Errors: those of the store, and of is_in_use.
absl::Status DeclareCopy(StateStore& store, const Restored& restored);

// The row that declares a copy.
v1::StateRow CopyRow(const std::string& name);

}  // namespace meshrun::coordinator
