#include "python/extension/interrupted_waits.h"

#include <pybind11/pybind11.h>

#include <exception>
#include <thread>

#include "parallel/base/interrupts.h"

namespace meshrun::python {
namespace {

std::thread::id main_thread;

std::exception_ptr raised_by_signals() {
  if (std::this_thread::get_id() != main_thread || Py_IsInitialized() == 0) return nullptr;
  const pybind11::gil_scoped_acquire lock;
  if (PyErr_CheckSignals() == 0) return nullptr;
  return std::make_exception_ptr(pybind11::error_already_set());
}

}  // namespace

void let_signals_end_waits() {
  main_thread = std::this_thread::get_id();
  set_interrupt_check(&raised_by_signals);
}

}  // namespace meshrun::python
