// Compares an all-to-all between the ranks where the backend compares nothing itself (Gloo): an
// all-gather of what each rank says, before any data moves. So a wrong call on one rank is the same
// error on all of them, and the group stays usable.
//
//   agree      one all-gather of 2 + 2 P numbers of each rank
//   disagree   one more, of texts; none where only sizes differ
//
// It waits for the other ranks to call too, also in a call that is waited for later.
//
// Threads and order: as a collective of the backend. Errors: CollectiveArgumentError,
// CollectiveMismatchError; the backend's own.
#pragma once

#include "parallel/comm/interface/call_comparer.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"

namespace meshrun {

// Whether MESHRUN_CHECK_COLLECTIVES lets it: not where it is 0, as for ucx. Equal on all ranks.
bool compares_by_gathering();

// As CallComparer::compare(), and waited for. The row has the call's name, and its sizes unless
// there is a problem.
void compare_by_gathering(c10d::Backend& backend, const Comparison& comparison);

}  // namespace meshrun
