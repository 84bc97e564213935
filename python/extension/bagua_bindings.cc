#include "python/extension/bagua_bindings.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"
#include "c10/core/Stream.h"
#include "c10/util/intrusive_ptr.h"
#include "fmt/format.h"
#include "parallel/bagua/collectives.h"
#include "parallel/bagua/communicator.h"
#include "parallel/bagua/process_group.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/comm/v_collectives_of.h"
#include "python/extension/bagua_operators.h"
#include "python/extension/holders.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun::python {
namespace {

namespace py = pybind11;
using bagua::BaguaProcessGroup;
using bagua::Communicator;
using BaguaReleased = py::call_guard<py::gil_scoped_release>;

// None or a torch.Stream. With the interpreter lock.
std::optional<c10::Stream> stream_of(const py::object& stream) {
  if (stream.is_none()) return std::nullopt;
  if (!py::isinstance(stream, py::module_::import("torch").attr("Stream"))) {
    throw py::type_error(fmt::format("stream must be a torch.Stream or None, and is a {}",
                                     Py_TYPE(stream.ptr())->tp_name));
  }
  return c10::Stream::unpack3(
      stream.attr("stream_id").cast<int64_t>(),
      static_cast<c10::DeviceIndex>(stream.attr("device_index").cast<int64_t>()),
      static_cast<c10::DeviceType>(stream.attr("device_type").cast<int64_t>()));
}

// Takes part in the collective that the other ranks call, with the `problem` of an argument: they
// all raise it. `device`: of another argument, absent where there is none.
void refuse(const Communicator& comm, const std::optional<std::string>& device,
            const std::string& problem) {
  const c10::intrusive_ptr<c10d::ProcessGroup>& group = comm.group();
  c10::DeviceType type = device_of(at::Tensor(), *group);
  for (const c10::Device& its : group->getDeviceTypes()) {
    if (device && its.type() == c10::Device(*device).type()) type = its.type();
  }
  meshrun::detail::raise_on_all_ranks(group, type, problem);
}

using Getter = Communicator (BaguaProcessGroup::*)() const;

auto keyed(Getter get) {
  return [get](const BaguaProcessGroup& group) {
    return std::make_unique<KeyedCommunicator>((group.*get)());
  };
}

void bind_classes(py::module_& m) {
  using Handle = KeyedCommunicator;
  py::class_<Handle>(m, "Communicator", "A handle of a communicator, which the collectives take")
      .def(
          "rank", [](const Handle& handle) { return handle.get().rank(); },
          "This process's rank here; -1 outside it")
      .def("nranks", [](const Handle& handle) { return handle.get().nranks(); })
      .def(
          "ranks", [](const Handle& handle) { return handle.get().ranks(); },
          "World ranks, by rank in the communicator")
      .def("is_member", [](const Handle& handle) { return handle.get().is_member(); })
      .def_property_readonly("name", [](const Handle& handle) { return handle.get().name(); })
      .def_property_readonly("key", &Handle::key, "What operators find this handle by")
      .def(
          "abort", [](const Handle& handle) { handle.get().abort(); }, BaguaReleased(),
          "Ends all operations under way; they and later ones raise DistBackendError")
      .def(
          "check_abort", [](const Handle& handle) { return handle.get().check_abort(); },
          BaguaReleased(),
          "Whether it was aborted, here or elsewhere, or has failed. Does not wait: ask again")
      .def(
          "is_aborted", [](const Handle& handle) { return handle.get().is_aborted(); },
          "Whether abort() was called on this rank");
  py::class_<BaguaProcessGroup>(m, "BaguaProcessGroup",
                                "A set of ranks with three communicators: all members, those of "
                                "this node, and one of each node.\n\nCollectives on CUDA tensors "
                                "run on `stream`, a torch.Stream; None: the default group's. On "
                                "the CPU it has no effect.")
      .def(py::init([](std::vector<int> ranks, const py::object& stream, std::string name) {
             const std::optional<c10::Stream> its = stream_of(stream);
             const py::gil_scoped_release released;
             return BaguaProcessGroup(std::move(ranks), its, std::move(name));
           }),
           py::arg("ranks"), py::arg("stream"), py::arg("group_name"))
      .def("get_global_communicator", keyed(&BaguaProcessGroup::get_global_communicator),
           BaguaReleased())
      .def("get_inter_node_communicator", keyed(&BaguaProcessGroup::get_inter_node_communicator),
           BaguaReleased())
      .def("get_intra_node_communicator", keyed(&BaguaProcessGroup::get_intra_node_communicator),
           BaguaReleased())
      .def_property_readonly("group_name", &BaguaProcessGroup::group_name)
      .def_property_readonly("ranks", &BaguaProcessGroup::ranks)
      .def_property_readonly("intra_ranks", &BaguaProcessGroup::intra_ranks)
      .def_property_readonly("inter_ranks", &BaguaProcessGroup::inter_ranks);
}

}  // namespace

void bind_bagua(py::module_& module) {
  py::module_ m = module.def_submodule("bagua", "Bagua's communicators and process groups");
  bind_classes(m);
  m.def(
      "init_process_group",
      [](c10::intrusive_ptr<c10d::Store> store) { bagua::init_process_group(store); },
      py::arg("store"), BaguaReleased());
  m.def("is_initialized", &bagua::is_initialized, BaguaReleased());
  m.def("new_group", [](const std::optional<std::vector<int>>& ranks, const py::object& stream) {
    const std::optional<c10::Stream> its = stream_of(stream);
    const py::gil_scoped_release released;
    return bagua::new_group(ranks, its);
  });
  m.def("from_torch_group", [](c10d::ProcessGroup* group, const py::object& stream) {
    const auto kept = c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(group);
    const std::optional<c10::Stream> its = stream_of(stream);
    const py::gil_scoped_release released;
    return bagua::from_torch_group(kept, its);
  });
  m.def(
      "barrier", [](const std::string& key) { bagua::barrier(communicator_of(key)); },
      BaguaReleased());
  m.def(
      "rank", [](const std::string& key) { return communicator_of(key).rank(); }, BaguaReleased());
  m.def(
      "refuse",
      [](const std::string& key, const std::optional<std::string>& device,
         const std::string& problem) { refuse(communicator_of(key).resolved(), device, problem); },
      BaguaReleased());
}

}  // namespace meshrun::python
