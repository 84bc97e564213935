// all_gather_v, reduce_scatter_v, gather_v and scatter_v: see the headers of the same names in
// parallel/collectives.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/zeros.h"
#include "c10/util/Exception.h"
#include "parallel/collectives/call/collective.h"
#include "parallel/collectives/call/launch.h"
#include "python/extension/linear_operator.h"
#include "python/extension/operators.h"
#include "torch/library.h"

namespace meshrun::python {
namespace {

using at::OptionalIntArrayRef;
using at::OptionalSymIntArrayRef;
using at::Tensor;
using std::string_view;
using Saved = const std::vector<Tensor>&;

using RootedOperator = Tensor(const Tensor&, OptionalSymIntArrayRef, int64_t, int64_t, string_view,
                              bool);

const auto& reduce_scatter_v_operator() {
  static const auto found = find_operator<SymmetricOperator>("meshrun::reduce_scatter_v");
  return found;
}
const auto& gather_v_operator() {
  static const auto found = find_operator<RootedOperator>("meshrun::gather_v");
  return found;
}
const auto& scatter_v_operator() {
  static const auto found = find_operator<RootedOperator>("meshrun::scatter_v");
  return found;
}

Tensor run(const CollectivePtr& collective, const Tensor& tensor, bool differentiable) {
  const c10::NoGradGuard no_grad;  // a backend may copy with tensor operators
  return launch(*collective, tensor, {.requires_grad = differentiable});
}

// CPU and CUDA.

Tensor all_gather_v_kernel(const Tensor& tensor, OptionalIntArrayRef sizes, int64_t dim,
                           bool use_fp32, string_view name, bool differentiable) {
  const GroupHandle group = group_named(name);
  const Sizes pieces = sizes_of(sizes, tensor.dim(), group->getSize());
  return run(make_all_gather(tensor, pieces, dim, use_fp32, group), tensor, differentiable);
}

Tensor reduce_scatter_v_kernel(const Tensor& tensor, OptionalIntArrayRef sizes, int64_t dim,
                               bool use_fp32, string_view name, bool differentiable) {
  const GroupHandle group = group_named(name);
  const Sizes pieces = sizes_of(sizes, tensor.dim(), group->getSize());
  return run(make_reduce_scatter(tensor, pieces, dim, use_fp32, group), tensor, differentiable);
}

Tensor gather_v_kernel(const Tensor& tensor, OptionalIntArrayRef sizes, int64_t dim, int64_t dst,
                       string_view name, bool differentiable) {
  const GroupHandle group = group_named(name);
  const Sizes pieces = sizes_of(sizes, tensor.dim(), group->getSize());
  return run(make_gather(tensor, pieces, dim, dst, group), tensor, differentiable);
}

Tensor scatter_v_kernel(const Tensor& tensor, OptionalIntArrayRef sizes, int64_t dim, int64_t src,
                        string_view name, bool differentiable) {
  const GroupHandle group = group_named(name);
  const Sizes pieces = sizes_of(sizes, tensor.dim(), group->getSize());
  return run(make_scatter(tensor, pieces, dim, src, group), tensor, differentiable);
}

// Meta.

Tensor all_gather_v_meta(const Tensor& tensor, OptionalSymIntArrayRef sizes, int64_t dim, bool,
                         string_view name, bool) {
  const int world = group_named(name)->getSize();
  const SymPieces pieces = sym_pieces(tensor, sizes, dim, world);
  const bool is_equal = pieces.extents.empty();
  return meta_with_extent(tensor, pieces.dim,
                          is_equal ? tensor.sym_size(pieces.dim) * world : pieces.total());
}

Tensor reduce_scatter_v_meta(const Tensor& tensor, OptionalSymIntArrayRef sizes, int64_t dim, bool,
                             string_view name, bool) {
  const GroupHandle group = group_named(name);
  const SymPieces pieces = sym_pieces(tensor, sizes, dim, group->getSize());
  const auto rank = static_cast<size_t>(group->getRank());
  return meta_with_extent(tensor, pieces.dim,
                          pieces.extents.empty() ? tensor.sym_size(pieces.dim) / group->getSize()
                                                 : pieces.extents[rank]);
}

Tensor gather_v_meta(const Tensor& tensor, OptionalSymIntArrayRef sizes, int64_t dim, int64_t dst,
                     string_view name, bool) {
  const GroupHandle group = group_named(name);
  const int world = group->getSize();
  const SymPieces pieces = sym_pieces(tensor, sizes, dim, world);
  if (group->getRank() != dst) return meta_with_extent(tensor, pieces.dim, 0);
  const bool is_equal = pieces.extents.empty();
  return meta_with_extent(tensor, pieces.dim,
                          is_equal ? tensor.sym_size(pieces.dim) * world : pieces.total());
}

Tensor scatter_v_meta(const Tensor& tensor, OptionalSymIntArrayRef sizes, int64_t dim, int64_t,
                      string_view name, bool) {
  const GroupHandle group = group_named(name);
  TORCH_CHECK_VALUE(sizes.has_value(),
                    "scatter_v: without sizes only rank src knows the shapes of the pieces, so "
                    "that a traced call needs sizes");
  const SymPieces pieces = sym_pieces(tensor, sizes, dim, group->getSize());
  return meta_with_extent(tensor, pieces.dim,
                          pieces.extents[static_cast<size_t>(group->getRank())]);
}

// Autograd.

// `sizes` as the adjoint of a rooted operator needs them, since a template does not tell them.
std::vector<c10::SymInt> sizes_for_adjoint(OptionalSymIntArrayRef sizes, const Tensor& piece,
                                           int64_t dim, int world) {
  if (sizes.has_value()) return sizes->vec();
  return std::vector<c10::SymInt>(static_cast<size_t>(world), piece.sym_size(dim));
}

// Zeros of `shape` from a tensor of extent 0 along `dim`, whose node stays in the graph for
// derivatives of higher order.
Tensor zeros_connected_to(const Tensor& nothing, c10::SymIntArrayRef shape, int64_t dim) {
  const Tensor zeros = at::zeros_symint(shape, nothing.options());
  // torch.cat drops a tensor of shape [0], so all get one more dimension.
  return at::cat({nothing.unsqueeze(-1), zeros.unsqueeze(-1)}, dim).squeeze(-1);
}

// all_gather_v and reduce_scatter_v, which are each other's adjoint. `backward`: as errors name it;
// static.
Tensor symmetric_autograd(const c10::TypedOperatorHandle<SymmetricOperator>& forward,
                          const c10::TypedOperatorHandle<SymmetricOperator>& adjoint,
                          const char* backward, const Tensor& tensor, OptionalSymIntArrayRef sizes,
                          int64_t dim, bool use_fp32, string_view group, bool traced) {
  return linear(
      tensor, group,
      [&](bool has_node, string_view in) {
        return forward.call(tensor, sizes, dim, use_fp32, in, traced || has_node);
      },
      [&](const Tensor&) -> Adjoint {
        return [&adjoint, backward, sizes = kept(sizes), dim, use_fp32, group = std::string(group)](
                   const Tensor& cotangent, Saved) {
          const CalledAs name(backward);
          return adjoint.call(cotangent, view_of(sizes), dim, use_fp32, group, false);
        };
      });
}

Tensor all_gather_v_autograd(const Tensor& tensor, OptionalSymIntArrayRef sizes, int64_t dim,
                             bool use_fp32, string_view group, bool traced) {
  return symmetric_autograd(all_gather_v_operator(), reduce_scatter_v_operator(),
                            "backward of all_gather_v", tensor, sizes, dim, use_fp32, group,
                            traced);
}

Tensor reduce_scatter_v_autograd(const Tensor& tensor, OptionalSymIntArrayRef sizes, int64_t dim,
                                 bool use_fp32, string_view group, bool traced) {
  return symmetric_autograd(reduce_scatter_v_operator(), all_gather_v_operator(),
                            "backward of reduce_scatter_v", tensor, sizes, dim, use_fp32, group,
                            traced);
}

Tensor gather_v_autograd(const Tensor& tensor, OptionalSymIntArrayRef sizes, int64_t dim,
                         int64_t dst, string_view group, bool traced) {
  return linear(
      tensor, group,
      [&](bool has_node, string_view in) {
        return gather_v_operator().call(tensor, sizes, dim, dst, in, traced || has_node);
      },
      [&](const Tensor&) -> Adjoint {
        const int world = group_named(group)->getSize();
        return [sizes = sizes_for_adjoint(sizes, tensor, dim, world), dim, dst,
                group = std::string(group)](const Tensor& cotangent, Saved) {
          const CalledAs name("backward of gather_v");
          return scatter_v_operator().call(cotangent, c10::SymIntArrayRef(sizes), dim, dst, group,
                                           false);
        };
      });
}

Tensor scatter_v_autograd(const Tensor& tensor, OptionalSymIntArrayRef sizes, int64_t dim,
                          int64_t src, string_view group, bool traced) {
  return linear(
      tensor, group,
      [&](bool has_node, string_view in) {
        return scatter_v_operator().call(tensor, sizes, dim, src, in, traced || has_node);
      },
      [&](const Tensor& piece) -> Adjoint {
        const GroupHandle handle = group_named(group);
        return [sizes = sizes_for_adjoint(sizes, piece, dim, handle->getSize()),
                dim = dim < 0 ? dim + tensor.dim() : dim, src, group = std::string(group),
                is_template = handle->getRank() != src,
                shape = tensor.sym_sizes().vec()](const Tensor& cotangent, Saved) {
          const CalledAs name("backward of scatter_v");
          const Tensor gathered = gather_v_operator().call(cotangent, c10::SymIntArrayRef(sizes),
                                                           dim, src, group, false);
          return is_template ? zeros_connected_to(gathered, shape, dim) : gathered;
        };
      });
}

}  // namespace

const c10::TypedOperatorHandle<SymmetricOperator>& all_gather_v_operator() {
  static const auto found = find_operator<SymmetricOperator>("meshrun::all_gather_v");
  return found;
}

TORCH_LIBRARY_FRAGMENT(meshrun, m) {
  m.def(
      "all_gather_v(Tensor tensor, SymInt[]? sizes=None, int dim=0, bool use_fp32=True, "
      "str group=\"\", *, bool differentiable=False) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "reduce_scatter_v(Tensor tensor, SymInt[]? sizes=None, int dim=0, bool use_fp32=True, "
      "str group=\"\", *, bool differentiable=False) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "gather_v(Tensor tensor, SymInt[]? sizes=None, int dim=0, int dst=0, str group=\"\", *, "
      "bool differentiable=False) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "scatter_v(Tensor tensor, SymInt[]? sizes=None, int dim=0, int src=0, str group=\"\", *, "
      "bool differentiable=False) -> Tensor",
      {at::Tag::pt2_compliant_tag});
}

#define MESHRUN_KERNELS(key, suffix)                                \
  TORCH_LIBRARY_IMPL(meshrun, key, m) {                             \
    m.impl("all_gather_v", TORCH_FN(all_gather_v##suffix));         \
    m.impl("reduce_scatter_v", TORCH_FN(reduce_scatter_v##suffix)); \
    m.impl("gather_v", TORCH_FN(gather_v##suffix));                 \
    m.impl("scatter_v", TORCH_FN(scatter_v##suffix));               \
  }

MESHRUN_KERNELS(CPU, _kernel)
MESHRUN_KERNELS(CUDA, _kernel)
MESHRUN_KERNELS(Meta, _meta)
MESHRUN_KERNELS(Autograd, _autograd)

#undef MESHRUN_KERNELS

}  // namespace meshrun::python
