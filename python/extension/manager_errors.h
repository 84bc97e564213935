// Turns the manager's exceptions into those of meshrun.distributed.errors.
#pragma once

namespace meshrun::python {

// For all functions that pybind11 binds, also those of other modules.
void register_manager_errors();

}  // namespace meshrun::python
