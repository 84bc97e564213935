#include "python/extension/bagua_bindings.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "c10/core/Device.h"
#include "c10/core/Stream.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/bagua/collectives.h"
#include "parallel/bagua/communicator.h"
#include "parallel/bagua/process_group.h"
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

// stream_id, device_index and device_type of a torch.cuda.Stream.
using StreamParts = std::optional<std::tuple<int64_t, int64_t, int64_t>>;

std::optional<c10::Stream> stream_of(const StreamParts& parts) {
  if (!parts) return std::nullopt;
  const auto& [id, index, type] = *parts;
  return c10::Stream::unpack3(id, static_cast<c10::DeviceIndex>(index),
                              static_cast<c10::DeviceType>(type));
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
          BaguaReleased(), "Whether it was aborted, here or elsewhere, or has failed");
  py::class_<BaguaProcessGroup>(m, "BaguaProcessGroup",
                                "A set of ranks with three communicators: all members, those of "
                                "this node, and one of each node")
      .def(py::init([](std::vector<int> ranks, const StreamParts& stream, std::string name) {
             return BaguaProcessGroup(std::move(ranks), stream_of(stream), std::move(name));
           }),
           py::arg("ranks"), py::arg("stream"), py::arg("group_name"), BaguaReleased())
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
  m.def("is_initialized", &bagua::is_initialized);
  m.def("default_process_group", &bagua::default_process_group);
  m.def(
      "new_group",
      [](const std::optional<std::vector<int>>& ranks, const StreamParts& stream) {
        return bagua::new_group(ranks, stream_of(stream));
      },
      BaguaReleased());
  m.def(
      "from_torch_group",
      [](c10d::ProcessGroup* group, const StreamParts& stream) {
        return bagua::from_torch_group(c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(group),
                                       stream_of(stream));
      },
      BaguaReleased());
  m.def(
      "barrier", [](const std::string& key) { bagua::barrier(communicator_of(key)); },
      BaguaReleased());
  m.def("rank", [](const std::string& key) { return communicator_of(key).rank(); });
}

}  // namespace meshrun::python
