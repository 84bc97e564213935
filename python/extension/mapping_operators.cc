// The four maps of tensor parallelism: see parallel/collectives/mappings.h. The sum over the ranks
// has kernels of its own; the others are made of it, of all_gather_v and of PyTorch's operators,
// and a trace shows those.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "c10/util/Exception.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/collectives/call/local_dim.h"
#include "python/extension/linear_operator.h"
#include "python/extension/operators.h"
#include "torch/library.h"

namespace meshrun::python {
namespace {

using at::OptionalSymIntArrayRef;
using at::Tensor;
using std::string_view;
using Saved = const std::vector<Tensor>&;

const auto& reduce_from_operator() {
  using Function = Tensor(const Tensor&, string_view, bool);
  static const auto found = find_operator<Function>("meshrun::reduce_from_parallel_region");
  return found;
}
Tensor reduce_from(const Tensor& input, string_view group, bool use_fp32) {
  const c10::NoGradGuard no_grad;
  CollectiveSpec spec;
  spec.use_fp32 = use_fp32;
  const Tensor sum = input.clone(at::MemoryFormat::Contiguous);
  return detail::all_reduce(group_named(group), sum, c10d::ReduceOp::SUM, std::move(spec)).wait();
}

Tensor reduce_from_meta(const Tensor& input, string_view, bool) {
  return input.new_empty_symint(input.sym_sizes());
}

Tensor copy_to(const Tensor& input, string_view group);

Tensor reduce_from_autograd(const Tensor& input, string_view group, bool use_fp32) {
  return linear(
      input, group,
      [&](bool, string_view in) { return reduce_from_operator().call(input, in, use_fp32); },
      [&](const Tensor&) -> Adjoint {
        return [group = std::string(group)](const Tensor& cotangent, Saved) {
          return copy_to(cotangent, group);
        };
      });
}

// Nothing compares the inputs of copy_to and scatter_to.
void count(const Tensor& input, string_view group) {
  if (!has_no_memory(input) && !wants_gradient(input))
    count_without_node(*group_named(group), input);
}

Tensor copy_to(const Tensor& input, string_view group) {
  if (!wants_gradient(input)) {
    count(input, group);
    return input.view_as(input);
  }
  return linear(
      input, group,
      // Autograd makes a view of an input that is returned. torch.compile would make one without
      // this node.
      [&](bool, string_view) { return has_no_memory(input) ? input.clone() : input; },
      [&](const Tensor&) -> Adjoint {
        return [group = std::string(group)](const Tensor& cotangent, Saved) {
          return reduce_from_operator().call(cotangent, group, true);
        };
      });
}

Tensor gathered(const Tensor& input, OptionalSymIntArrayRef sizes, int64_t dim, string_view group);

// This rank's piece along `dim`, which counts from the front; new memory.
Tensor own_piece(const Tensor& input, const std::vector<c10::SymInt>& sizes, int64_t dim,
                 string_view group) {
  return linear(
      input, group,
      [&](bool, string_view) {
        const auto rank = static_cast<size_t>(group_named(group)->getRank());
        c10::SymInt begin = 0;
        for (size_t r = 0; r < rank; ++r) begin = begin + sizes[r];
        return input.narrow_symint(dim, begin, sizes[rank]).clone(at::MemoryFormat::Contiguous);
      },
      [&](const Tensor&) -> Adjoint {
        return [sizes, dim, group = std::string(group)](const Tensor& cotangent, Saved) {
          return gathered(cotangent, c10::SymIntArrayRef(sizes), dim, group);
        };
      });
}

Tensor gathered(const Tensor& input, OptionalSymIntArrayRef sizes, int64_t dim, string_view group) {
  return linear(
      input, group,
      [&](bool, string_view in) {
        return all_gather_v_operator().call(input, sizes, dim, true, in, false);
      },
      [&](const Tensor&) -> Adjoint {
        const int world = group_named(group)->getSize();
        SymPieces pieces = sym_pieces(input, sizes, dim, world);
        if (pieces.extents.empty()) {
          pieces.extents.assign(static_cast<size_t>(world), input.sym_size(pieces.dim));
        }
        return [pieces, group = std::string(group)](const Tensor& cotangent, Saved) {
          return own_piece(cotangent, pieces.extents, pieces.dim, group);
        };
      });
}

Tensor scatter_to(const Tensor& input, int64_t dim, string_view group) {
  const int64_t along = local_dim("scatter_to_parallel_region", input, dim);
  const int world = group_named(group)->getSize();
  std::vector<c10::SymInt> pieces;
  for (int r = 0; r < world; ++r) {
    pieces.push_back(sym_split(input.sym_size(along), world, r).size);
  }
  count(input, group);
  return own_piece(input, pieces, along, group);
}

Tensor gather_from(const Tensor& input, int64_t dim, OptionalSymIntArrayRef shapes,
                   string_view group) {
  return gathered(input, shapes, dim, group);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(meshrun, m) {
  m.def("reduce_from_parallel_region(Tensor input, str group=\"\", bool use_fp32=True) -> Tensor",
        {at::Tag::pt2_compliant_tag});
  m.def("copy_to_parallel_region(Tensor(a) input, str group=\"\") -> Tensor(a)",
        {at::Tag::pt2_compliant_tag});
  m.def("scatter_to_parallel_region(Tensor input, int dim, str group=\"\") -> Tensor",
        {at::Tag::pt2_compliant_tag});
  m.def(
      "gather_from_parallel_region(Tensor input, int dim, SymInt[]? shapes=None, "
      "str group=\"\") -> Tensor",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(meshrun, CPU, m) {
  m.impl("reduce_from_parallel_region", TORCH_FN(reduce_from));
}
TORCH_LIBRARY_IMPL(meshrun, CUDA, m) {
  m.impl("reduce_from_parallel_region", TORCH_FN(reduce_from));
}
TORCH_LIBRARY_IMPL(meshrun, Meta, m) {
  m.impl("reduce_from_parallel_region", TORCH_FN(reduce_from_meta));
}
TORCH_LIBRARY_IMPL(meshrun, Autograd, m) {
  m.impl("reduce_from_parallel_region", TORCH_FN(reduce_from_autograd));
}
TORCH_LIBRARY_IMPL(meshrun, CompositeImplicitAutograd, m) {
  m.impl("copy_to_parallel_region", TORCH_FN(copy_to));
  m.impl("scatter_to_parallel_region", TORCH_FN(scatter_to));
  m.impl("gather_from_parallel_region", TORCH_FN(gather_from));
}

}  // namespace meshrun::python
