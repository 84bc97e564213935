// What another library knows of its ranks, from the struct of meshrun.h to that of the manager.
//
// Threads: any.
#pragma once

#include "parallel/c_api/meshrun.h"
#include "parallel/manager/bootstrap.h"

namespace meshrun {

// The result's functions call those of `given`, and raise std::runtime_error with what these say.
Bootstrap to_bootstrap(const meshrun_bootstrap& given);

}  // namespace meshrun
