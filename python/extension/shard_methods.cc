#include "python/extension/shard_methods.h"

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>

#include "fmt/format.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"
#include "torch/csrc/autograd/python_variable.h"

namespace meshrun::python {
namespace {

namespace py = pybind11;

constexpr std::array kNames = {"numpy", "tolist"};
// PyTorch's own. Never released: the methods live as long as the class.
std::array<PyObject*, kNames.size()> own_methods{};

void raise_refusal(const char* name) {
  const py::object error = py::module_::import("meshrun.domain_parallel.errors")
                               .attr("memory_is_elsewhere")(name, fmt::format(".{}()", name));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

template <size_t I>
PyObject* method(PyObject* self, PyObject* arguments, PyObject* keywords) {
  if (is_shard_tensor(THPVariable_Unpack(self))) {
    try {
      raise_refusal(kNames[I]);
    } catch (py::error_already_set& error) {
      error.restore();
    }
    return nullptr;
  }
  const Py_ssize_t count = PyTuple_GET_SIZE(arguments);
  const auto all = py::reinterpret_steal<py::object>(PyTuple_New(count + 1));
  if (!all) return nullptr;
  PyTuple_SET_ITEM(all.ptr(), 0, Py_NewRef(self));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(all.ptr(), i + 1, Py_NewRef(PyTuple_GET_ITEM(arguments, i)));
  }
  return PyObject_Call(own_methods[I], all.ptr(), keywords);
}

template <size_t I>
void replace() {
  static PyMethodDef definition = {
      kNames[I], reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&method<I>)),
      METH_VARARGS | METH_KEYWORDS, nullptr};
  own_methods[I] = PyObject_GetAttrString(THPVariableClass, kNames[I]);
  if (own_methods[I] == nullptr) throw py::error_already_set();
  const auto made = py::reinterpret_steal<py::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(THPVariableClass), &definition));
  if (!made || PyObject_SetAttrString(THPVariableClass, kNames[I], made.ptr()) != 0) {
    throw py::error_already_set();
  }
}

}  // namespace

void refuse_memory_of_sharded_tensors() {
  if (own_methods[0] != nullptr) return;
  replace<0>();
  replace<1>();
}

}  // namespace meshrun::python
