#include "python/extension/manager_bindings.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "parallel/base/errors.h"
#include "parallel/comm/process_group_factory.h"
#include "parallel/manager/distributed_manager.h"
#include "python/extension/holders.h"
#include "python/extension/manager_errors.h"
#include "python/extension/worlds.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"

namespace meshrun::python {
namespace {

namespace py = pybind11;
using Milliseconds = std::chrono::milliseconds;
using Name = std::optional<std::string>;

// Name, size and parent of a node of a configuration's tree; the root has no parent.
using Node = std::tuple<std::string, std::optional<int64_t>, Name>;
// Shape, names of the axes, and all ranks, row-major.
using Mesh = std::tuple<std::vector<int64_t>, std::vector<std::string>, std::vector<int>>;

DistributedManager& manager() {
  if (!DistributedManager::is_initialized()) {
    throw UninitializedError(
        "DistributedManager is not initialized: call DistributedManager.initialize() first");
  }
  return DistributedManager::get();
}

// The C++ manager of a world of one rank takes every name while no group has one. Here a name that
// nobody created is an error there too, as PhysicsNeMo has it.
const Name& known(const Name& name) {
  if (!name || *name == "world" || manager().world_size() > 1) return name;
  const std::vector<std::string> names = manager().group_names();
  if (std::find(names.begin(), names.end(), *name) == names.end()) {
    throw UndefinedGroupError(
        fmt::format("there is no process group \"{}\": create it with create_process_subgroup() or "
                    "initialize_mesh()",
                    *name));
  }
  return name;
}

void initialize(const Name& backend, const Name& method, std::optional<Milliseconds> timeout) {
  InitializeOptions options;
  options.backend = backend;
  options.method = method;
  options.timeout = timeout;
  DistributedManager::initialize(options);
}

void setup(int64_t rank, int64_t world_size, std::optional<int64_t> local_rank,
           const std::string& addr, const std::string& port, const std::string& backend,
           const std::string& method) {
  std::optional<IntArgument> on_node;
  if (local_rank) on_node = *local_rank;
  DistributedManager::setup(rank, world_size, on_node, addr, port, backend, method);
}

void cleanup(bool barrier) {
  DistributedManager::cleanup(barrier);
  drop_unused_worlds();
}

// While the default group is bound to a device, torch.distributed splits NCCL's communicator for
// each new group, by a call that all ranks must make. Here members alone make theirs, so ranks that
// are not in the new group would wait for ever.
void unbind(c10d::ProcessGroup& group) { group.setBoundDeviceId(std::nullopt); }

ProcessGroupPtr group(const Name& name) {
  ProcessGroupPtr group = manager().group(known(name));
  hold_engine(*group);
  unbind(*group);
  return group;
}

ProcessGroupPtr make_group_of_manager(const std::string& key, const std::vector<int>& ranks,
                                      const c10::intrusive_ptr<c10d::Store>& store,
                                      std::optional<Milliseconds> timeout) {
  ProcessGroupPtr group = manager().make_group(key, ranks, store);
  unbind(*group);
  if (timeout) {
    for (const c10::Device device : group->getDeviceTypes())
      group->getBackend(device.type())->setTimeout(*timeout);
  }
  return group;
}

c10::intrusive_ptr<c10d::Store> store() {
  return c10::make_intrusive<c10d::PrefixStore>("torch.distributed", manager().store());
}

void create_process_subgroup(const std::string& name, int64_t size, const Name& group_name,
                             bool verbose) {
  manager();
  DistributedManager::create_process_subgroup(name, size, group_name, verbose);
}

void create_orthogonal_process_group(const std::string& orthogonal_name, const std::string& name,
                                     bool verbose) {
  manager();
  DistributedManager::create_orthogonal_process_group(orthogonal_name, name, verbose);
}

// `nodes` are in the order they were added, the root first.
void create_groups(const std::vector<Node>& nodes, bool verbose) {
  manager();
  const auto node = [](const Node& given) {
    const auto& [name, size, parent] = given;
    return size ? ProcessGroupNode(name, *size) : ProcessGroupNode(name);
  };
  ProcessGroupConfig config(node(nodes.at(0)));
  for (size_t i = 1; i < nodes.size(); ++i)
    config.add_node(node(nodes[i]), std::get<2>(nodes[i]).value_or(""));
  DistributedManager::create_groups_from_config(config, verbose);
}

Mesh parts_of(const DeviceMesh& mesh) {
  return {mesh.shape(), mesh.mesh_dim_names(), mesh.ranks()};
}

}  // namespace

void bind_manager(py::module_& module) {
  register_manager_errors();
  using Free = py::call_guard<py::gil_scoped_release>;
  const auto get = [&module](const char* name, auto method) {
    module.def(
        name, [method] { return (manager().*method)(); }, Free());
  };
  const auto get_of = [&module](const char* name, auto method) {
    module.def(
        name, [method](const Name& group) { return (manager().*method)(known(group)); },
        py::arg("name") = py::none(), Free());
  };
  module.def("has_backend", &has_backend, py::arg("name"), Free());
  module.def("manager_initialize", &initialize, py::arg("backend"), py::arg("method"),
             py::arg("timeout"), Free());
  module.def("manager_setup", &setup, py::arg("rank"), py::arg("world_size"), py::arg("local_rank"),
             py::arg("addr"), py::arg("port"), py::arg("backend"), py::arg("method"), Free());
  module.def("manager_is_initialized", &DistributedManager::is_initialized, Free());
  module.def("manager_cleanup", &cleanup, py::arg("barrier") = false, Free());

  get("manager_rank", &DistributedManager::rank);
  get("manager_world_size", &DistributedManager::world_size);
  get("manager_local_rank", &DistributedManager::local_rank);
  get("manager_local_world_size", &DistributedManager::local_world_size);
  get("manager_node_rank", &DistributedManager::node_rank);
  get("manager_cuda", &DistributedManager::cuda);
  get("manager_distributed", &DistributedManager::distributed);
  get("manager_timeout", &DistributedManager::timeout);
  get("manager_broadcast_buffers", &DistributedManager::broadcast_buffers);
  get("manager_find_unused_parameters", &DistributedManager::find_unused_parameters);
  get("manager_group_names", &DistributedManager::group_names);
  get_of("manager_group_size", &DistributedManager::group_size);
  get_of("manager_group_rank", &DistributedManager::group_rank);
  get_of("manager_group_ranks", &DistributedManager::group_ranks);
  module.def(
      "manager_device", [] { return manager().device().str(); }, Free());
  module.def(
      "manager_backend", [] { return manager().backend(); }, Free());
  module.def(
      "manager_initialization_method", [] { return manager().initialization_method(); }, Free());
  module.def(
      "manager_set_broadcast_buffers", [](bool on) { manager().set_broadcast_buffers(on); },
      Free());
  module.def(
      "manager_set_find_unused_parameters",
      [](bool on) { manager().set_find_unused_parameters(on); }, Free());

  module.def("manager_group", &group, py::arg("name") = py::none(), Free());
  module.def(
      "manager_group_name",
      [](const ProcessGroupPtr& group) { return manager().group_name(group); }, py::arg("group"),
      Free());
  module.def("manager_make_group", &make_group_of_manager, py::arg("key"), py::arg("ranks"),
             py::arg("store") = py::none(), py::arg("timeout") = py::none(), Free());
  module.def("manager_store", &store, Free());
  module.def("manager_create_process_subgroup", &create_process_subgroup, py::arg("name"),
             py::arg("size"), py::arg("group_name"), py::arg("verbose"), Free());
  module.def("manager_create_orthogonal_process_group", &create_orthogonal_process_group,
             py::arg("orthogonal_group_name"), py::arg("group_name"), py::arg("verbose"), Free());
  module.def("manager_create_groups", &create_groups, py::arg("nodes"), py::arg("verbose"), Free());
  module.def(
      "manager_initialize_mesh",
      [](const std::vector<int64_t>& shape, const std::vector<std::string>& names) {
        return parts_of(manager().initialize_mesh(shape, names));
      },
      py::arg("mesh_shape"), py::arg("mesh_dim_names"), Free());
  module.def(
      "manager_global_mesh", [] { return parts_of(manager().global_mesh()); }, Free());
  module.def(
      "manager_mesh", [](const Name& name) { return parts_of(manager().mesh(name)); },
      py::arg("name") = py::none(), Free());
  get("manager_mesh_names", &DistributedManager::mesh_names);
}

}  // namespace meshrun::python
