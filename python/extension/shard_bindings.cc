#include "python/extension/shard_bindings.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/full.h"
#include "parallel/base/traced_calls.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/distribute_module.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/neighborhood/neighborhood_attention.h"
#include "parallel/shard/random/random_operation.h"
#include "parallel/shard/scatter_tensor.h"
#include "parallel/shard/shard_tensor.h"
#include "python/extension/holders.h"
#include "python/extension/module_mirror.h"
#include "python/extension/shard_methods.h"
#include "python/extension/shard_words.h"
#include "torch/csrc/autograd/python_variable.h"

namespace meshrun::python {
namespace {

namespace py = pybind11;
using Free = py::call_guard<py::gil_scoped_release>;
using Lengths = std::vector<int64_t>;
using OptionalWords = std::optional<Words>;
// None: the ranks tell each other; "chunk"; or the shapes of the shards along each mesh dimension.
using Shapes = std::variant<std::monostate, std::string, std::map<int64_t, std::vector<Lengths>>>;
// Axes that cut a dimension, and the sizes of its pieces.
using Cut = std::pair<Lengths, Lengths>;

OptionalPlacements optional_placements(const OptionalWords& words) {
  return words ? OptionalPlacements(placements_of(*words)) : OptionalPlacements();
}

ShardingShapes sharding_shapes(const Shapes& shapes) {
  if (const auto* const word = std::get_if<std::string>(&shapes)) {
    if (*word == "infer") return ShardingShapes::infer();
    if (*word == "chunk") return ShardingShapes::chunk();
    throw ShardTensorError("sharding_shapes is \"infer\", \"chunk\", or a dict of shapes, not \"" +
                           *word + "\"");
  }
  if (const auto* const given = std::get_if<2>(&shapes)) return ShardingShapes::given(*given);
  return ShardingShapes::infer();
}

DeviceMesh device_mesh(const MeshParts& parts, int rank) {
  const auto& [shape, names, ranks] = parts;
  return {MeshLayout{.names = names, .shape = shape, .ranks = ranks}, rank};
}

std::vector<DimCut> dim_cuts(const std::vector<Cut>& cuts) {
  std::vector<DimCut> all;
  for (const auto& [axes, sizes] : cuts) all.push_back({axes, sizes});
  return all;
}

bool is_sharded_object(const py::handle& object) {
  return THPVariable_Check(object.ptr()) && is_shard_tensor(THPVariable_Unpack(object.ptr()));
}

// The classes are Python's, and are looked up where one is raised.
void translate(std::exception_ptr thrown) {
  const auto raise = [](const char* name, const c10::Error& error) {
    const py::object type = py::module_::import("meshrun.domain_parallel.errors").attr(name);
    PyErr_SetString(type.ptr(), error.what_without_backtrace());
  };
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const ShardTensorError& error) {
    raise("ShardTensorError", error);
  } catch (const MissingShardRuleError& error) {
    raise("MissingShardRuleError", error);
  }
}

void bind_meshes(py::module_& shard) {
  py::class_<ShardMesh, ShardMesh::Ptr>(shard, "ShardMesh")
      .def_property_readonly("parts",
                             [](const ShardMesh& mesh) { return parts_of(mesh.device_mesh()); })
      .def_property_readonly("coordinate", &ShardMesh::coordinate)
      .def("__repr__", [](const ShardMesh& mesh) { return mesh.device_mesh().to_string(); });
  shard.def(
      "mesh_of_manager",
      [](const MeshParts& parts) {
        const int rank = DistributedManager::get().rank();
        return ShardMesh::of(device_mesh(parts, rank));
      },
      py::arg("parts"), Free());
  shard.def(
      "mesh_over",
      [](const MeshParts& parts, int rank, std::vector<ShardMesh::Group> axes,
         ShardMesh::Group whole, const c10::Device& device) {
        return ShardMesh::over(device_mesh(parts, rank), std::move(axes), std::move(whole), device);
      },
      py::arg("parts"), py::arg("rank"), py::arg("axes"), py::arg("whole"), py::arg("device"),
      Free());
  shard.def("global_mesh", &ShardMesh::global, Free());
}

void bind_specs(py::module_& shard) {
  py::class_<ShardTensorSpec, SpecPtr>(shard, "ShardTensorSpec")
      .def_property_readonly("mesh", [](const ShardTensorSpec& spec) { return spec.mesh(); })
      .def_property_readonly(
          "placements", [](const ShardTensorSpec& spec) { return words_of(spec.placements()); })
      .def_property_readonly("global_shape", &ShardTensorSpec::global_shape)
      .def_property_readonly("local_shape", &ShardTensorSpec::local_shape)
      .def_property_readonly("box",
                             [](const ShardTensorSpec& spec) {
                               return std::pair(spec.box().offsets, spec.box().sizes);
                             })
      .def_property_readonly("cuts",
                             [](const ShardTensorSpec& spec) {
                               std::vector<Cut> cuts;
                               for (const DimCut& cut : spec.layout().cuts())
                                 cuts.emplace_back(cut.axes, cut.sizes);
                               return cuts;
                             })
      .def(
          "offset", [](const ShardTensorSpec& spec, int64_t axis) { return spec.offset(axis); },
          py::arg("axis"))
      .def(
          "shard_sizes",
          [](const ShardTensorSpec& spec, int64_t axis) { return spec.shard_sizes(axis); },
          py::arg("axis"))
      .def("is_chunked",
           [](const ShardTensorSpec& spec) {
             const ShardLayout& layout = spec.layout();
             return layout == ShardLayout::chunk(layout.mesh_shape(), layout.placements(),
                                                 layout.global_shape());
           })
      .def("__eq__", [](const ShardTensorSpec& spec,
                        const SpecPtr& other) { return other && spec == *other; })
      .def("__hash__", [](const ShardTensorSpec& spec) { return spec.layout().hash(); })
      .def("__repr__", &ShardTensorSpec::to_string);
  shard.def(
      "spec",
      [](const ShardMesh::Ptr& mesh, const Words& placements, const std::vector<Cut>& cuts) {
        return with_shard_errors([&] {
          return make_spec(mesh, ShardLayout::with_cuts(mesh->shape(), placements_of(placements),
                                                        dim_cuts(cuts)));
        });
      },
      py::arg("mesh"), py::arg("placements"), py::arg("cuts"));
  shard.def(
      "spec_by_rule",
      [](const ShardMesh::Ptr& mesh, const Words& placements, const Lengths& shape, bool chunk) {
        return with_shard_errors([&] {
          const Placements on = placements_of(placements);
          return make_spec(mesh, chunk ? ShardLayout::chunk(mesh->shape(), on, shape)
                                       : ShardLayout::split(mesh->shape(), on, shape));
        });
      },
      py::arg("mesh"), py::arg("placements"), py::arg("shape"), py::arg("chunk"));
}

void bind_tensors(py::module_& shard) {
  shard.def("is_sharded", &is_sharded_object, py::arg("object"));
  shard.def("was_any_made", &any_shard_tensor_was_made);
  shard.def("refuse_memory_of_sharded_tensors", &refuse_memory_of_sharded_tensors);
  shard.def(
      "make",
      [](const at::Tensor& local, const SpecPtr& spec, bool requires_grad) -> at::Tensor {
        return ShardTensor(local, spec, requires_grad);
      },
      py::arg("local"), py::arg("spec"), py::arg("requires_grad"), Free());
  shard.def(
      "from_local",
      [](const at::Tensor& local, const ShardMesh::Ptr& mesh, const OptionalWords& placements,
         const Shapes& shapes, const std::optional<Lengths>& global_shape,
         const OptionalWords& grad_placements) -> at::Tensor {
        return ShardTensor::from_local(local, mesh->device_mesh(), optional_placements(placements),
                                       sharding_shapes(shapes), global_shape,
                                       optional_placements(grad_placements));
      },
      py::arg("local"), py::arg("mesh"), py::arg("placements"), py::arg("shapes"),
      py::arg("global_shape"), py::arg("grad_placements") = py::none(), Free());
  shard.def(
      "from_parts",
      [](const at::Tensor& local, const SpecPtr& spec) { return meshrun::from_local(local, spec); },
      py::arg("local"), py::arg("spec"), Free());
  shard.def(
      "local", [](const at::Tensor& tensor) { return alias_of(tensor); }, py::arg("tensor"),
      Free());
  shard.def(
      "spec_of", [](const at::Tensor& tensor) { return spec_of(tensor); }, py::arg("tensor"));
  shard.def(
      "to_local",
      [](const at::Tensor& tensor, const OptionalWords& grad_placements) {
        return ShardTensor(tensor).to_local(optional_placements(grad_placements));
      },
      py::arg("tensor"), py::arg("grad_placements"), Free());
  shard.def(
      "full_tensor",
      [](const at::Tensor& tensor, const OptionalWords& grad_placements) {
        return ShardTensor(tensor).full_tensor(optional_placements(grad_placements));
      },
      py::arg("tensor"), py::arg("grad_placements"), Free());
  shard.def(
      "redistribute",
      [](const at::Tensor& tensor, const std::optional<ShardMesh::Ptr>& mesh,
         const OptionalWords& placements, bool async_op) -> at::Tensor {
        std::optional<DeviceMesh> on;
        if (mesh) on = (*mesh)->device_mesh();
        return ShardTensor(tensor).redistribute(on, optional_placements(placements), async_op);
      },
      py::arg("tensor"), py::arg("mesh"), py::arg("placements"), py::arg("async_op"), Free());
  shard.def(
      "scatter_tensor",
      [](const std::optional<at::Tensor>& tensor, int64_t source, const ShardMesh::Ptr& mesh,
         const Words& placements, const std::optional<Lengths>& global_shape,
         std::optional<at::ScalarType> dtype, bool requires_grad) -> at::Tensor {
        return scatter_tensor(tensor.value_or(at::Tensor()), source, mesh->device_mesh(),
                              placements_of(placements), global_shape, dtype, requires_grad);
      },
      py::arg("tensor"), py::arg("source"), py::arg("mesh"), py::arg("placements"),
      py::arg("global_shape"), py::arg("dtype"), py::arg("requires_grad"), Free());
}

void bind_attention(py::module_& shard) {
  shard.def(
      "neighborhood_attention",
      [](const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
         Lengths kernel_size, Lengths dilation, std::vector<bool> is_causal,
         std::optional<double> scale) {
        return neighborhood_attention(
            query, key, value,
            {std::move(kernel_size), std::move(dilation), std::move(is_causal), scale});
      },
      py::arg("query"), py::arg("key"), py::arg("value"), py::arg("kernel_size"),
      py::arg("dilation"), py::arg("is_causal"), py::arg("scale"), Free());
}

// Name, tensor, and whether it is a parameter.
using Entry = std::tuple<std::string, at::Tensor, bool>;

void bind_modules(py::module_& shard) {
  shard.def(
      "distribute_module",
      [](const std::vector<Entry>& entries, const ShardMesh::Ptr& mesh) {
        std::vector<NamedTensor> tensors;
        for (const auto& [name, tensor, is_parameter] : entries) {
          tensors.push_back({name, tensor, is_parameter});
        }
        distribute_module(*mirror_of(tensors), mesh->device_mesh());
      },
      py::arg("entries"), py::arg("mesh"), Free());
}

struct Tracing {
  std::optional<CompilingScope> scope;
};

// The guards of C++ as functions that give the state before.
void bind_modes(py::module_& shard) {
  shard.def("promotion_mode", [] { return static_cast<int>(promotion_mode()); });
  shard.def(
      "set_promotion_mode", [](int mode) { set_promotion_mode(static_cast<PromotionMode>(mode)); },
      py::arg("mode"));
  shard.def("announce_plain_leaves", &announce_plain_leaves);
  shard.def(
      "all_agree",
      [](const ShardMesh::Ptr& mesh, bool agrees) {
        const at::Tensor all = at::full({1}, agrees, at::device(mesh->device()).dtype(at::kInt));
        meshrun::detail::all_reduce(mesh->group(), all, c10d::ReduceOp::MIN).wait();
        return all.item<int32_t>() == 1;
      },
      py::arg("mesh"), py::arg("agrees"), Free());
  py::class_<Tracing>(shard, "Tracing")
      .def(py::init<>())
      .def("__enter__", [](Tracing& self) { self.scope.emplace(); })
      .def("__exit__", [](Tracing& self, const py::args& /*raised*/) { self.scope.reset(); });
  shard.def("random_count", [] { return random_state().counter; });
  shard.def(
      "set_random_count",
      [](uint64_t count) {
        set_random_state({random_state().seed, count});
      },
      py::arg("count"));
  shard.def("patches_enabled", &ShardTensor::patches_enabled);
  shard.def(
      "exclude_patches",
      [](bool excluded) { c10::impl::tls_set_dispatch_key_excluded(kFunctionKey, excluded); },
      py::arg("excluded"));
}

}  // namespace

void bind_shard(py::module_& module) {
  py::register_exception_translator(translate);
  py::module_ shard = module.def_submodule("shard");
  bind_meshes(shard);
  bind_specs(shard);
  bind_tensors(shard);
  bind_attention(shard);
  bind_modules(shard);
  bind_modes(shard);
}

}  // namespace meshrun::python
