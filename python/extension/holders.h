// How PyTorch's own classes cross into Python: in c10::intrusive_ptr, as PyTorch's header declares.
// Every file that binds a function which takes or returns one includes this first.
#pragma once

#include <torch/csrc/utils/pybind.h>  // IWYU pragma: export
