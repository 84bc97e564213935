// Binds Bagua's communicators and process groups: meshrun._torch.bagua, the handles that
// meshrun/communication.py gives to people. Functions on tensors are operators (bagua_operators.h).
#pragma once

#include <pybind11/pybind11.h>

namespace meshrun::python {

void bind_bagua(pybind11::module_& module);

}  // namespace meshrun::python
