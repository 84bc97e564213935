// From the engine's failures to the exceptions of collectives, one per kind. Pure.
#pragma once

#include <exception>

#include "parallel/comm/ucx/engine/values/failure.h"

namespace meshrun {

// What `failure` is thrown as (parallel/base/collective_errors.h).
std::exception_ptr to_exception(const ucx::Failure& failure);

}  // namespace meshrun
