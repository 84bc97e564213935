// The Python module meshrun._torch. It binds what has handles; meshrun/torch/__init__.py is what
// people import.
//
// PyTorch's own classes (Store, Backend) cross here by pybind11's registry, which the headers of
// the PyTorch that this is built with share with its libraries. Exceptions of c10 become PyTorch's
// Python exceptions by the translator that PyTorch has registered there.
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "parallel/manager/libtorch_version.h"
#include "python/extension/backend.h"
#include "python/extension/elastic_bindings.h"
#include "python/extension/interrupted_waits.h"
#include "python/extension/raised_errors.h"
#include "python/extension/worlds.h"

PYBIND11_DECLARE_HOLDER_TYPE(T, c10::intrusive_ptr<T>, true)

namespace meshrun::python {
namespace {

c10::intrusive_ptr<c10d::Backend> create(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                         std::chrono::milliseconds timeout, std::string name,
                                         std::vector<int> global_ranks, bool is_default) {
  return create_backend({.store = std::move(store),
                         .rank = rank,
                         .size = size,
                         .timeout = timeout,
                         .name = std::move(name),
                         .global_ranks = std::move(global_ranks),
                         .is_default = is_default});
}

}  // namespace
}  // namespace meshrun::python

PYBIND11_MODULE(_torch, module) {
  namespace python = meshrun::python;
  namespace py = pybind11;
  meshrun::require_libtorch_of_build();
  module.doc() = "meshrun for PyTorch: what meshrun.torch is made of";
  module.def("create", &python::create, py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("timeout"), py::arg("name"), py::arg("global_ranks"), py::arg("is_default"),
             py::call_guard<py::gil_scoped_release>());
  python::let_signals_end_waits();
  python::bind_errors(module);
  python::bind_elastic(module);
  module.def("end_worlds", &python::end_worlds, py::call_guard<py::gil_scoped_release>());
}
