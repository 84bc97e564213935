// What a rank is blocked in, for the watch. Pure.
#pragma once

#include <vector>

#include "core/wait_board.h"
#include "parallel/comm/ucx/engine/execution/member_group.h"

namespace meshrun::ucx {

// Report of a rank that is blocked in `operations` and is a member of `groups`, without what only
// Engine knows: other_threads and deadlock_after.
WaitReport wait_report_of(const std::vector<const Operation*>& operations, const Groups& groups);

}  // namespace meshrun::ucx
