#include "python/extension/operators.h"

#include <pybind11/pybind11.h>

#include <cstddef>
#include <string>
#include <utility>

#include "ATen/WrapDimUtils.h"
#include "c10/util/Exception.h"
#include "torch/csrc/distributed/c10d/GroupRegistry.hpp"

namespace meshrun::python {
namespace {

constexpr std::string_view kInTrace = " (traced)";

std::string name_of_default_group() {
  const pybind11::gil_scoped_acquire lock;
  return pybind11::module_::import("meshrun.distributed._groups")
      .attr("group_name")()
      .cast<std::string>();
}

// Whether `sizes` are full shapes. A tensor of one dimension has its extent as its shape.
bool are_shapes(size_t count, int64_t ndim, int world) {
  return ndim > 1 && static_cast<int64_t>(count) == ndim * world;
}

}  // namespace

std::string in_trace(std::string_view group) {
  return std::string(group).append(is_in_trace(group) ? "" : kInTrace);
}

bool is_in_trace(std::string_view group) { return group.ends_with(kInTrace); }

GroupHandle group_named(std::string_view name) {
  if (is_in_trace(name)) name.remove_suffix(kInTrace.size());
  const std::string known = name.empty() ? name_of_default_group() : std::string(name);
  try {
    return c10d::resolve_process_group(known);
  } catch (const c10::Error&) {
    TORCH_CHECK(false, "this process has no process group \"", known,
                "\": it has ended, with DistributedManager.cleanup() or destroy_process_group(), "
                "or was never made");
  }
}

void forget_traced_programs() {
  const pybind11::gil_scoped_acquire lock;
  pybind11::module_::import("meshrun._torch_entry").attr("forget_traced_programs")();
}

SymSizes kept(at::OptionalSymIntArrayRef sizes) {
  if (!sizes.has_value()) return std::nullopt;
  return sizes->vec();
}

at::OptionalSymIntArrayRef view_of(const SymSizes& sizes) {
  if (!sizes) return std::nullopt;
  return c10::SymIntArrayRef(*sizes);
}

Sizes sizes_of(at::OptionalIntArrayRef sizes, int64_t ndim, int world) {
  if (!sizes.has_value()) return {};
  if (!are_shapes(sizes->size(), ndim, world)) return {*sizes};
  std::vector<Sizes::Shape> shapes;
  for (size_t r = 0; r < static_cast<size_t>(world); ++r) {
    const auto count = static_cast<size_t>(ndim);
    shapes.push_back(sizes->slice(r * count, count).vec());
  }
  return {std::move(shapes)};
}

c10::SymInt SymPieces::total() const {
  c10::SymInt sum = 0;
  for (const c10::SymInt& extent : extents) sum = sum + extent;
  return sum;
}

SymPieces sym_pieces(const at::Tensor& tensor, at::OptionalSymIntArrayRef sizes, int64_t dim,
                     int world) {
  SymPieces pieces;
  const int64_t ndim = tensor.dim();
  pieces.dim = at::maybe_wrap_dim(dim, ndim, /*wrap_scalar=*/false);
  if (!sizes.has_value()) return pieces;
  if (are_shapes(sizes->size(), ndim, world)) {
    for (int64_t r = 0; r < world; ++r) {
      pieces.extents.push_back((*sizes)[static_cast<size_t>(r * ndim + pieces.dim)]);
    }
    return pieces;
  }
  TORCH_CHECK_VALUE(static_cast<int64_t>(sizes->size()) == world, "sizes has ", sizes->size(),
                    " elements for a group of ", world, " ranks");
  pieces.extents = sizes->vec();
  return pieces;
}

SymRange sym_split(const c10::SymInt& extent, int world, int rank) {
  c10::SymInt chunk = (extent + (world - 1)) / world;
  if (extent - chunk * (world - 1) <= 0) chunk = extent / world;
  const c10::SymInt begin = chunk * rank;
  return {begin, rank < world - 1 ? chunk : extent - begin};
}

bool has_no_memory(const at::Tensor& tensor) {
  return tensor.is_meta() || tensor.key_set().has(c10::DispatchKey::Python);
}

at::Tensor meta_with_extent(const at::Tensor& tensor, int64_t dim, const c10::SymInt& extent) {
  std::vector<c10::SymInt> shape = tensor.sym_sizes().vec();
  shape[static_cast<size_t>(dim)] = extent;
  return tensor.new_empty_symint(shape);
}

}  // namespace meshrun::python
