// Bagua's collectives as operators: torch.ops.meshrun.bagua_allreduce and so on, which
// meshrun/communication.py calls.
//
// They write into their arguments (`Tensor(a!)`) and return nothing, so that compiled programs keep
// them, in order. The last argument is a communicator's name; "" is the default group's global one.
// There are no gradients. Kernels for meta tensors do nothing. Errors: parallel/bagua/collectives.h,
// and GroupError for a name that nobody has.
#pragma once

#include <string>

#include "parallel/bagua/communicator.h"

namespace meshrun::python {

// Operators find it by its name from now on, until another one of that name comes.
void name_for_operators(const bagua::Communicator& communicator);

bagua::Communicator communicator_named(const std::string& name);

}  // namespace meshrun::python
