// The user that ranks run as, where it is not the daemon's.
#pragma once

#include "absl/status/status.h"
#include "meshrun/v1/supervisor.pb.h"

namespace meshrun::worker {

// This process, which has one thread, is `user`'s from now on, with that user's groups alone: all
// three ids of both kinds. Clears PR_SET_PDEATHSIG. PERMISSION_DENIED: it may not.
absl::Status Become(const v1::RankUser& user);

}  // namespace meshrun::worker
