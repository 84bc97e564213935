// Exceptions of ours on their way through Python.
//
// An exception that leaves a bound function becomes a Python one, and may come back to C++ from a
// function of Python's that C++ has called. So the Python exception keeps the C++ one, and
// cause_of() gives it back, with its type.
//
// What PyTorch's own functions raise (a backward pass) has lost the type by then: a DistError of
// PyTorch's counts as a lost peer where the world's backend says that it has failed.
//
// Threads: with Python's interpreter lock.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>

namespace meshrun::python {

// Adds the exception classes to the module, and what translates into them.
void bind_errors(pybind11::module_& module);

// Null where the exception is Python's own.
std::exception_ptr cause_of(const pybind11::error_already_set& error);

}  // namespace meshrun::python
