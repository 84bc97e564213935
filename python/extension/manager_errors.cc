#include "python/extension/manager_errors.h"

#include <pybind11/pybind11.h>

#include <exception>

#include "c10/util/Exception.h"
#include "parallel/base/errors.h"

namespace meshrun::python {
namespace {

namespace py = pybind11;

// The classes are Python's: they have bases of both sides, and are looked up where one is raised.
void raise(const char* name, const c10::Error& error) {
  const py::object type = py::module_::import("meshrun.distributed.errors").attr(name);
  PyErr_SetString(type.ptr(), error.what_without_backtrace());
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const UninitializedError& error) {
    raise("UninitializedError", error);
  } catch (const UndefinedGroupError& error) {
    raise("UndefinedGroupError", error);
  } catch (const GroupError& error) {
    raise("GroupError", error);
  } catch (const MeshError& error) {
    raise("MeshError", error);
  } catch (const EnvironmentError& error) {
    raise("LaunchEnvironmentError", error);
  }
}

}  // namespace

void register_manager_errors() { py::register_exception_translator(translate); }

}  // namespace meshrun::python
