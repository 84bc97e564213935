#include "python/extension/bagua_bindings.h"

#include <pybind11/stl.h>

#include <cstdint>
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

auto named(Getter get) {
  return [get](const BaguaProcessGroup& group) {
    Communicator communicator = (group.*get)();
    name_for_operators(communicator);
    return communicator;
  };
}

void bind_classes(py::module_& m) {
  py::class_<Communicator>(m, "Communicator",
                           "A handle of a communicator, which the collectives take")
      .def("rank", &Communicator::rank, "This process's rank here; -1 outside it")
      .def("nranks", &Communicator::nranks)
      .def("ranks", &Communicator::ranks, "World ranks, by rank in the communicator")
      .def("is_member", &Communicator::is_member)
      .def_property_readonly("name", &Communicator::name)
      .def("abort", &Communicator::abort, BaguaReleased(),
           "Ends all operations under way; they and later ones raise DistBackendError")
      .def("check_abort", &Communicator::check_abort, BaguaReleased(),
           "Whether it was aborted, here or elsewhere, or has failed");
  py::class_<BaguaProcessGroup>(m, "BaguaProcessGroup",
                                "A set of ranks with three communicators: all members, those of "
                                "this node, and one of each node")
      .def(py::init([](std::vector<int> ranks, const StreamParts& stream, std::string name) {
             return BaguaProcessGroup(std::move(ranks), stream_of(stream), std::move(name));
           }),
           py::arg("ranks"), py::arg("stream"), py::arg("group_name"), BaguaReleased())
      .def("get_global_communicator", named(&BaguaProcessGroup::get_global_communicator),
           BaguaReleased())
      .def("get_inter_node_communicator", named(&BaguaProcessGroup::get_inter_node_communicator),
           BaguaReleased())
      .def("get_intra_node_communicator", named(&BaguaProcessGroup::get_intra_node_communicator),
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
      "barrier", [](const std::string& name) { bagua::barrier(communicator_named(name)); },
      BaguaReleased());
  m.def("rank", [](const std::string& name) { return communicator_named(name).rank(); });
}

}  // namespace meshrun::python
