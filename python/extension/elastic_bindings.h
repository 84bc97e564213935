// Binds what meshrun/elastic.py is made of: elastic trainings and checkpoints.
#pragma once

#include <pybind11/pybind11.h>

namespace meshrun::python {

void bind_elastic(pybind11::module_& module);

}  // namespace meshrun::python
