// The world that models belong to.
#pragma once

#include <cstdint>

#include "parallel/manager/distributed_manager.h"

namespace meshrun::c_api {

// The manager. Raises CallError (MESHRUN_INVALID_STATE) without one.
DistributedManager& joined_world();
// How many worlds this process has joined: a model of an earlier one is of no use.
int64_t world_number();

}  // namespace meshrun::c_api
