// indexed_all_to_all_v and distributed_transpose with their adjoints: see
// parallel/collectives/indexed_all_to_all_v.h and transpose.h.
//
// `sizes` of the indexed operators: the table of the C++ function, row after row. A call makes its
// plan anew, the backward pass too.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ATen/WrapDimUtils.h"
#include "ATen/core/grad_mode.h"
#include "c10/util/Exception.h"
#include "parallel/base/extents.h"
#include "parallel/base/split.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/collectives/call/collective.h"
#include "parallel/collectives/call/launch.h"
#include "parallel/collectives/plans/indexed_all_to_all_plan.h"
#include "parallel/collectives/plans/indexed_exchange.h"
#include "python/extension/linear_operator.h"
#include "python/extension/operators.h"
#include "torch/library.h"

namespace meshrun::python {
namespace {

using at::IntArrayRef;
using at::OptionalIntArrayRef;
using at::OptionalSymIntArrayRef;
using at::Tensor;
using at::TensorList;
using c10::SymInt;
using c10::SymIntArrayRef;
using std::string_view;
using Saved = const std::vector<Tensor>&;

using Indexed = Tensor(const Tensor&, TensorList, SymIntArrayRef, bool, int64_t, string_view, bool);
using IndexedReverse = Tensor(const Tensor&, TensorList, SymIntArrayRef, SymInt, bool, int64_t,
                              string_view, bool);
using Transpose = Tensor(const Tensor&, int64_t, int64_t, OptionalSymIntArrayRef, string_view,
                         bool);
using TransposeAdjoint = Tensor(const Tensor&, int64_t, int64_t, SymIntArrayRef, SymInt,
                                string_view, bool);

const auto& indexed_operator() {
  static const auto found = find_operator<Indexed>("meshrun::indexed_all_to_all_v");
  return found;
}
const auto& indexed_reverse_operator() {
  static const auto found = find_operator<IndexedReverse>("meshrun::indexed_all_to_all_v_reverse");
  return found;
}
const auto& transpose_operator() {
  static const auto found = find_operator<Transpose>("meshrun::distributed_transpose");
  return found;
}
const auto& transpose_adjoint_operator() {
  static const auto found =
      find_operator<TransposeAdjoint>("meshrun::distributed_transpose_adjoint");
  return found;
}

// CPU and CUDA.

// If the length does not divide by the ranks, the last row is short, and the plan reports that.
std::vector<std::vector<int64_t>> table_of(IntArrayRef sizes, int world) {
  const auto count = static_cast<size_t>(world);
  std::vector<std::vector<int64_t>> rows;
  for (size_t begin = 0; begin < sizes.size(); begin += count) {
    rows.push_back(sizes.slice(begin, std::min(count, sizes.size() - begin)).vec());
  }
  return rows;
}

Tensor indexed_all_to_all_v_kernel(const Tensor& tensor, TensorList indices, IntArrayRef sizes,
                                   bool use_fp32, int64_t dim, string_view name,
                                   bool differentiable) {
  const c10::NoGradGuard no_grad;
  const GroupHandle group = group_named(name);
  int64_t front = dim;
  const bool has_dim = wrap_dim("dim", front, tensor.dim()).empty();
  // A dim out of range is found, and reported to all ranks, when the plan is used.
  const IndexedAllToAllPlan plan(indices.vec(), table_of(sizes, group->getSize()),
                                 has_dim ? tensor.size(front) : 0, group);
  return indexed_all_to_all(tensor, plan.state(), use_fp32, dim, {.requires_grad = differentiable});
}

Tensor indexed_all_to_all_v_reverse_kernel(const Tensor& tensor, TensorList indices,
                                           IntArrayRef sizes, int64_t extent, bool use_fp32,
                                           int64_t dim, string_view name, bool differentiable) {
  const c10::NoGradGuard no_grad;
  const GroupHandle group = group_named(name);
  const IndexedAllToAllPlan plan(indices.vec(), table_of(sizes, group->getSize()), extent, group);
  return indexed_all_to_all_reverse(tensor, plan.state(), use_fp32, dim, differentiable);
}

Tensor distributed_transpose_kernel(const Tensor& tensor, int64_t dim0, int64_t dim1,
                                    OptionalIntArrayRef dim1_sizes, string_view name,
                                    bool differentiable) {
  const c10::NoGradGuard no_grad;
  std::optional<std::vector<int64_t>> sizes;
  if (dim1_sizes.has_value()) sizes = dim1_sizes->vec();
  const CollectivePtr collective = make_transpose(tensor, dim0, dim1, sizes, group_named(name));
  return launch(*collective, tensor, {.requires_grad = differentiable});
}

Tensor distributed_transpose_adjoint_kernel(const Tensor& tensor, int64_t dim0, int64_t dim1,
                                            IntArrayRef dim1_sizes, int64_t dim0_extent,
                                            string_view name, bool differentiable) {
  const c10::NoGradGuard no_grad;
  const CollectivePtr collective = make_collective(group_named(name));
  CollectiveSpec& spec = collective->spec;
  spec.kind = CollectiveSpec::Kind::kAllToAllV;
  std::string& problem = spec.problem;
  problem = wrap_dim("dim0", dim0, tensor.dim());
  if (problem.empty()) problem = wrap_dim("dim1", dim1, tensor.dim());
  if (problem.empty() && dim0 == dim1) problem = "dim0 and dim1 are the same";
  if (problem.empty()) {
    problem = check_extents("dim1_sizes", dim1_sizes, tensor.size(dim1), collective->world);
  }
  if (problem.empty() && dim0_extent < 0) {
    problem = "dim0_extent is " + std::to_string(dim0_extent);
  }
  if (problem.empty()) {
    const std::vector<int64_t> pieces = compute_split_shapes(dim0_extent, collective->world);
    problem = check_piece("the split of dim0", pieces, collective->rank, tensor.size(dim0), dim0);
    spec.cut = {dim0, Extents(pieces.begin(), pieces.end())};
    spec.received = {dim1, Extents(dim1_sizes.begin(), dim1_sizes.end())};
    agree_on_transpose(spec);
  }
  return launch(*collective, tensor, {.pass = Pass::kBackward, .requires_grad = differentiable});
}

// Meta. The dispatcher passes a SymInt by value.
// NOLINTBEGIN(performance-unnecessary-value-param)

Tensor indexed_all_to_all_v_meta(const Tensor& tensor, TensorList, SymIntArrayRef sizes, bool,
                                 int64_t dim, string_view name, bool) {
  const GroupHandle group = group_named(name);
  const auto world = static_cast<size_t>(group->getSize());
  TORCH_CHECK_VALUE(sizes.size() == world * world, "sizes has ", sizes.size(),
                    " elements; a table of ", world, " by ", world, " is expected");
  SymInt received = 0;
  for (size_t sender = 0; sender < world; ++sender) {
    received = received + sizes[sender * world + static_cast<size_t>(group->getRank())];
  }
  return meta_with_extent(tensor, at::maybe_wrap_dim(dim, tensor.dim(), false), received);
}

Tensor indexed_all_to_all_v_reverse_meta(const Tensor& tensor, TensorList, SymIntArrayRef,
                                         SymInt extent, bool, int64_t dim, string_view, bool) {
  return meta_with_extent(tensor, at::maybe_wrap_dim(dim, tensor.dim(), false), extent);
}

Tensor transposed_meta(const Tensor& tensor, int64_t dim0, const SymInt& extent0, int64_t dim1,
                       const SymInt& extent1) {
  const int64_t ndim = tensor.dim();
  std::vector<SymInt> shape = tensor.sym_sizes().vec();
  shape[static_cast<size_t>(at::maybe_wrap_dim(dim0, ndim, false))] = extent0;
  shape[static_cast<size_t>(at::maybe_wrap_dim(dim1, ndim, false))] = extent1;
  return tensor.new_empty_symint(shape);
}

Tensor distributed_transpose_meta(const Tensor& tensor, int64_t dim0, int64_t dim1,
                                  OptionalSymIntArrayRef dim1_sizes, string_view name, bool) {
  TORCH_CHECK_VALUE(dim1_sizes.has_value(),
                    "distributed_transpose: without dim1_sizes the ranks tell each other their "
                    "extents along dim1, so that a traced call needs dim1_sizes");
  const GroupHandle group = group_named(name);
  const SymPieces pieces = sym_pieces(tensor, dim1_sizes, dim1, group->getSize());
  const SymRange own = sym_split(tensor.sym_size(dim0), group->getSize(), group->getRank());
  return transposed_meta(tensor, dim0, own.size, dim1, pieces.total());
}

Tensor distributed_transpose_adjoint_meta(const Tensor& tensor, int64_t dim0, int64_t dim1,
                                          SymIntArrayRef dim1_sizes, SymInt dim0_extent,
                                          string_view name, bool) {
  const GroupHandle group = group_named(name);
  const SymPieces pieces = sym_pieces(tensor, dim1_sizes, dim1, group->getSize());
  return transposed_meta(tensor, dim0, dim0_extent, dim1,
                         pieces.extents[static_cast<size_t>(group->getRank())]);
}

// Autograd.

Tensor indexed_all_to_all_v_autograd(const Tensor& tensor, TensorList indices, SymIntArrayRef sizes,
                                     bool use_fp32, int64_t dim, string_view group, bool traced) {
  return linear(
      tensor, group,
      [&](bool has_node, string_view in) {
        return indexed_operator().call(tensor, indices, sizes, use_fp32, dim, in,
                                       traced || has_node);
      },
      [&](const Tensor&) -> Adjoint {
        return [sizes = sizes.vec(), extent = tensor.sym_size(dim), use_fp32, dim,
                group = std::string(group)](const Tensor& cotangent, Saved kept_indices) {
          return indexed_reverse_operator().call(cotangent, kept_indices, sizes, extent, use_fp32,
                                                 dim, group, false);
        };
      },
      indices.vec());
}

Tensor indexed_all_to_all_v_reverse_autograd(const Tensor& tensor, TensorList indices,
                                             SymIntArrayRef sizes, SymInt extent, bool use_fp32,
                                             int64_t dim, string_view group, bool traced) {
  return linear(
      tensor, group,
      [&](bool has_node, string_view in) {
        return indexed_reverse_operator().call(tensor, indices, sizes, extent, use_fp32, dim, in,
                                               traced || has_node);
      },
      [&](const Tensor&) -> Adjoint {
        return [sizes = sizes.vec(), use_fp32, dim, group = std::string(group)](
                   const Tensor& cotangent, Saved kept_indices) {
          return indexed_operator().call(cotangent, kept_indices, sizes, use_fp32, dim, group,
                                         false);
        };
      },
      indices.vec());
}

// The backward pass needs the extents that the ranks tell each other, so they do it here, once.
SymSizes dim1_sizes_told(const Tensor& tensor, int64_t dim0, int64_t dim1,
                         OptionalSymIntArrayRef dim1_sizes, string_view group) {
  if (dim1_sizes.has_value() || has_no_memory(tensor) || !wants_gradient(tensor)) {
    return kept(dim1_sizes);
  }
  const c10::NoGradGuard no_grad;
  const CollectivePtr told = make_transpose(tensor, dim0, dim1, std::nullopt, group_named(group));
  const Extents& extents = told->spec.received.sizes;
  return std::vector<SymInt>(extents.begin(), extents.end());
}

Tensor distributed_transpose_autograd(const Tensor& tensor, int64_t dim0, int64_t dim1,
                                      OptionalSymIntArrayRef dim1_sizes, string_view group,
                                      bool traced) {
  const SymSizes sizes = dim1_sizes_told(tensor, dim0, dim1, dim1_sizes, group);
  return linear(
      tensor, group,
      [&](bool has_node, string_view in) {
        return transpose_operator().call(tensor, dim0, dim1, view_of(sizes), in,
                                         traced || has_node);
      },
      [&](const Tensor&) -> Adjoint {
        return [sizes = *sizes, dim0, dim1, extent = tensor.sym_size(dim0),
                group = std::string(group)](const Tensor& cotangent, Saved) {
          const CalledAs name("backward");
          return transpose_adjoint_operator().call(cotangent, dim0, dim1, sizes, extent, group,
                                                   false);
        };
      });
}

Tensor distributed_transpose_adjoint_autograd(const Tensor& tensor, int64_t dim0, int64_t dim1,
                                              SymIntArrayRef dim1_sizes, SymInt dim0_extent,
                                              string_view group, bool traced) {
  return linear(
      tensor, group,
      [&](bool has_node, string_view in) {
        return transpose_adjoint_operator().call(tensor, dim0, dim1, dim1_sizes, dim0_extent, in,
                                                 traced || has_node);
      },
      [&](const Tensor&) -> Adjoint {
        return [sizes = dim1_sizes.vec(), dim0, dim1, group = std::string(group)](
                   const Tensor& cotangent, Saved) {
          const CalledAs name("backward");
          return transpose_operator().call(cotangent, dim0, dim1, SymIntArrayRef(sizes), group,
                                           false);
        };
      });
}

// NOLINTEND(performance-unnecessary-value-param)

}  // namespace

TORCH_LIBRARY_FRAGMENT(meshrun, m) {
  m.def(
      "indexed_all_to_all_v(Tensor tensor, Tensor[] indices, SymInt[] sizes, bool use_fp32=True, "
      "int dim=0, str group=\"\", *, bool differentiable=False) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "indexed_all_to_all_v_reverse(Tensor tensor, Tensor[] indices, SymInt[] sizes, "
      "SymInt tensor_size_along_dim, bool use_fp32=True, int dim=0, str group=\"\", *, "
      "bool differentiable=False) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "distributed_transpose(Tensor tensor, int dim0, int dim1, SymInt[]? dim1_sizes=None, "
      "str group=\"\", *, bool differentiable=False) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "distributed_transpose_adjoint(Tensor tensor, int dim0, int dim1, SymInt[] dim1_sizes, "
      "SymInt dim0_extent, str group=\"\", *, bool differentiable=False) -> Tensor",
      {at::Tag::pt2_compliant_tag});
}

#define MESHRUN_KERNELS(key, suffix)                                                          \
  TORCH_LIBRARY_IMPL(meshrun, key, m) {                                                       \
    m.impl("indexed_all_to_all_v", TORCH_FN(indexed_all_to_all_v##suffix));                   \
    m.impl("indexed_all_to_all_v_reverse", TORCH_FN(indexed_all_to_all_v_reverse##suffix));   \
    m.impl("distributed_transpose", TORCH_FN(distributed_transpose##suffix));                 \
    m.impl("distributed_transpose_adjoint", TORCH_FN(distributed_transpose_adjoint##suffix)); \
  }

MESHRUN_KERNELS(CPU, _kernel)
MESHRUN_KERNELS(CUDA, _kernel)
MESHRUN_KERNELS(Meta, _meta)
MESHRUN_KERNELS(Autograd, _autograd)

#undef MESHRUN_KERNELS

}  // namespace meshrun::python
