// The world that models belong to.
#pragma once

#include "parallel/manager/distributed_manager.h"

namespace meshrun::c_api {

// The manager. Raises CallError (MESHRUN_INVALID_STATE) without one.
DistributedManager& joined_world();

}  // namespace meshrun::c_api
