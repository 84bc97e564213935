#include "python/extension/raised_errors.h"

#include <memory>
#include <string>

#include "c10/util/Exception.h"
#include "parallel/base/collective_errors.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/comm/has_failed.h"
#include "parallel/comm/ucx/backend.h"
#include "parallel/elastic/elastic_context.h"
#include "parallel/manager/distributed_manager.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::python {
namespace {

namespace py = pybind11;

constexpr const char* kCause = "__meshrun_cause__";

// Never destroyed: exceptions may be raised until the interpreter has ended.
struct Classes {
  py::object stood_still, stopped, checkpoint, damaged, mismatch, file, refused;
};
Classes& classes() {
  static auto& classes = *new Classes;
  return classes;
}

py::object torch_class(const char* name) {
  return py::module_::import("torch.distributed").attr(name);
}

void set_error(const py::object& type, const std::string& text, const std::exception_ptr& raised) {
  const py::object value = type(text);
  auto kept = std::make_unique<std::exception_ptr>(raised);
  const py::capsule cause(kept.get(), [](void* p) { delete static_cast<std::exception_ptr*>(p); });
  kept.release();
  value.attr(kCause) = cause;
  PyErr_SetObject(type.ptr(), value.ptr());
}

// pybind11 asks the next translator for what this one lets through.
void keep_and_translate(std::exception_ptr raised) {
  if (!raised) return;
  try {
    std::rethrow_exception(raised);
  } catch (const meshrun::detail::StoodStill&) {
    set_error(classes().stood_still, "all ranks have left the world after the same step", raised);
  } catch (const ElasticStoppedError& error) {
    set_error(classes().stopped, error.what_without_backtrace(), raised);
  } catch (const CheckpointDamagedError& error) {
    set_error(classes().damaged, error.what_without_backtrace(), raised);
  } catch (const CheckpointMismatchError& error) {
    set_error(classes().mismatch, error.what_without_backtrace(), raised);
  } catch (const CheckpointFileError& error) {
    set_error(classes().file, error.what_without_backtrace(), raised);
  } catch (const CheckpointRefusedError& error) {
    set_error(classes().refused, error.what_without_backtrace(), raised);
  } catch (const c10::DistBackendError& error) {
    set_error(torch_class("DistBackendError"), error.what_without_backtrace(), raised);
  } catch (const c10::DistStoreError& error) {
    set_error(torch_class("DistStoreError"), error.what_without_backtrace(), raised);
  } catch (const c10::DistNetworkError& error) {
    set_error(torch_class("DistNetworkError"), error.what_without_backtrace(), raised);
  } catch (const c10::DistError& error) {
    set_error(torch_class("DistError"), error.what_without_backtrace(), raised);
  }
}

// Whether the group has failed, and not for what the program has called. Others do not say why:
// each of their failures counts.
bool has_failed_around_program(c10d::ProcessGroup& group) {
  if (!has_failed(group)) return false;
  for (const c10::Device& device : group.getDeviceTypes()) {
    const auto backend = group.getBackend(device.type());
    const auto* const ours = dynamic_cast<UcxBackend*>(backend.get());
    const auto failure = ours == nullptr ? std::nullopt : ours->group()->failure();
    if (!failure) continue;
    const ucx::FailureKind kind = failure->kind;
    if (kind == ucx::FailureKind::kMismatch || kind == ucx::FailureKind::kInvalidArgument ||
        kind == ucx::FailureKind::kDeadlock) {
      return false;
    }
  }
  return true;
}

// Whether this is so for a group that torch.distributed knows: the world may not have noticed.
bool any_group(bool (*predicate)(c10d::ProcessGroup&)) {
  if (!DistributedManager::is_initialized()) return false;
  if (predicate(*DistributedManager::get().world())) return true;
  const py::object known =
      py::module_::import("torch.distributed.distributed_c10d").attr("_world").attr("pg_map");
  for (const py::handle group : py::list(known)) {
    if (predicate(*group.cast<c10d::ProcessGroup*>())) return true;
  }
  return false;
}

}  // namespace

void bind_errors(py::module_& module) {
  const auto add = [&module](const char* name, const py::object& base) {
    const std::string full = std::string("meshrun.elastic.") + name;
    auto made =
        py::reinterpret_steal<py::object>(PyErr_NewException(full.c_str(), base.ptr(), nullptr));
    if (!made) throw py::error_already_set();
    module.attr(name) = made;
    return made;
  };
  const auto builtin = [](PyObject* type) { return py::reinterpret_borrow<py::object>(type); };
  Classes& all = classes();
  // No program catches it by mistake.
  all.stood_still = add("StoodStill", builtin(PyExc_BaseException));
  all.stopped = add("ElasticStoppedError", builtin(PyExc_RuntimeError));
  all.checkpoint = add("CheckpointError", builtin(PyExc_RuntimeError));
  all.damaged = add("CheckpointDamagedError", all.checkpoint);
  all.mismatch = add("CheckpointMismatchError", all.checkpoint);
  all.file = add("CheckpointFileError", all.checkpoint);
  all.refused = add("CheckpointRefusedError", all.checkpoint);
  py::register_exception_translator(&keep_and_translate);
}

std::exception_ptr cause_of(const py::error_already_set& error) {
  const py::object value = error.value();
  if (py::hasattr(value, kCause)) {
    return *static_cast<std::exception_ptr*>(value.attr(kCause).cast<py::capsule>().get_pointer());
  }
  // A future's then() makes a RuntimeError of what a continuation raises, with its text alone.
  const bool is_lost = error.matches(torch_class("DistError")) ? any_group(&has_failed)
                       : error.matches(PyExc_RuntimeError) ? any_group(&has_failed_around_program)
                                                           : false;
  if (!is_lost) return nullptr;
  return std::make_exception_ptr(PeerLostError(py::str(value).cast<std::string>()));
}

}  // namespace meshrun::python
