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
#include "python/extension/bagua_bindings.h"
#include "python/extension/elastic_bindings.h"
#include "python/extension/holders.h"
#include "python/extension/interrupted_waits.h"
#include "python/extension/manager_bindings.h"
#include "python/extension/raised_errors.h"
#include "python/extension/reconfigurable_backend.h"
#include "python/extension/shard_bindings.h"
#include "python/extension/worlds.h"

namespace meshrun::python {
namespace {

// Binds create_backend() or create_group() with GroupCall's members as arguments.
template <typename Create>
void bind_creator(pybind11::module_& module, const char* name, Create create) {
  namespace py = pybind11;
  module.def(
      name,
      [create](c10::intrusive_ptr<c10d::Store> store, int rank, int size,
               std::chrono::milliseconds timeout, std::string group_name,
               std::vector<int> global_ranks, bool is_default) {
        return create({.store = std::move(store),
                       .rank = rank,
                       .size = size,
                       .timeout = timeout,
                       .name = std::move(group_name),
                       .global_ranks = std::move(global_ranks),
                       .is_default = is_default});
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("name"),
      py::arg("global_ranks"), py::arg("is_default"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace
}  // namespace meshrun::python

PYBIND11_MODULE(_torch, module) {
  namespace python = meshrun::python;
  namespace py = pybind11;
  meshrun::require_libtorch_of_build();
  module.doc() = "meshrun for PyTorch: what meshrun.torch is made of";
  python::let_signals_end_waits();
  python::bind_errors(module);
  python::bind_elastic(module);
  python::bind_creator(module, "create", &python::create_backend);
  python::bind_creator(module, "create_group", &python::create_group);
  python::bind_creator(module, "create_reconfigurable",
                       [](python::GroupCall call) -> c10::intrusive_ptr<c10d::Backend> {
                         return c10::make_intrusive<python::ReconfigurableBackend>(std::move(call));
                       });
  module.def("end_worlds", &python::end_worlds, py::call_guard<py::gil_scoped_release>());
  python::bind_manager(module);
  python::bind_bagua(module);
  python::bind_shard(module);
}
