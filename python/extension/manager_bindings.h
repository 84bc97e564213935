// Binds meshrun::DistributedManager: what python/meshrun/distributed/ stands on.
//
// Functions of the module, each named manager_<method>, because there is one manager in a process;
// the Python class keeps no state of its own. All release the interpreter lock.
//
// Errors: those of parallel/base/errors.h become the classes of meshrun.distributed.errors;
// RendezvousError and BackendError stay PyTorch's DistError.
#pragma once

#include <pybind11/pybind11.h>

namespace meshrun::python {

void bind_manager(pybind11::module_& module);

}  // namespace meshrun::python
