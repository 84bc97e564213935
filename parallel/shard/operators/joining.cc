// Tensors put together: each rank joins its parts. Along a cut dimension, where the parts of a rank
// would not be one run, the elements that belong to another rank move, and no others.
#include <utility>
#include <vector>

#include "ATen/WrapDimUtils.h"
#include "ATen/core/IListRef.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/stack.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/layout/joined_layout.h"
#include "parallel/shard/layout/view_layout.h"
#include "parallel/shard/operators/operands.h"

namespace meshrun {
namespace {

using Tensors = std::vector<at::Tensor>;

// LibTorch ignores tensors of shape [0] among others.
bool is_ignored(const at::Tensor& tensor) { return tensor.dim() == 1 && tensor.size(0) == 0; }

void check_shapes(const Tensors& tensors, int64_t dim, const char* operation) {
  for (const at::Tensor& tensor : tensors) {
    bool fits = tensor.dim() == tensors.front().dim();
    for (int64_t d = 0; fits && d < tensor.dim(); ++d) {
      fits = d == dim || tensor.size(d) == tensors.front().size(d);
    }
    TORCH_CHECK(fits, operation, ": sizes of tensors must match except in dimension ", dim, ": ",
                tensors.front().sizes(), " and ", tensor.sizes());
  }
}

at::Tensor cat(const at::ITensorListRef& list, int64_t dim) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  Tensors tensors;
  for (const at::Tensor& tensor : list) tensors.push_back(tensor);
  check_plain_operands(tensors, "cat");
  const ShardMesh::Ptr mesh = mesh_of(tensors, "cat");
  Tensors chosen;
  for (const at::Tensor& tensor : tensors) {
    if (!is_ignored(tensor)) chosen.push_back(tensor);
  }
  if (chosen.empty()) chosen = tensors;
  TORCH_CHECK(chosen.front().dim() > 0, "cat: a tensor without dimensions cannot be joined");
  dim = at::maybe_wrap_dim(dim, chosen.front().dim());
  check_shapes(chosen, dim, "cat");
  std::vector<ShardLayout> layouts;
  for (const at::Tensor& tensor : chosen) layouts.push_back(spec_on(tensor, mesh)->layout());
  JoinedLayout layout = joined(layouts, dim);
  Tensors locals;
  for (size_t i = 0; i < chosen.size(); ++i) {
    locals.push_back(local_as(chosen[i], make_spec(mesh, std::move(layout.operands[i]))));
  }
  return wrap(at::cat(locals, dim), make_spec(mesh, std::move(layout.result)));
}

at::Tensor stack(at::TensorList list, int64_t dim) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const Tensors tensors = list.vec();
  check_plain_operands(tensors, "stack");
  const ShardMesh::Ptr mesh = mesh_of(tensors, "stack");
  const int64_t ndim = tensors.front().dim();
  dim = at::maybe_wrap_dim(dim, ndim + 1);
  check_shapes(tensors, -1, "stack");
  std::vector<ShardLayout> layouts;
  for (const at::Tensor& tensor : tensors) {
    layouts.push_back(with_dim(spec_on(tensor, mesh)->layout(), dim));
  }
  JoinedLayout layout = joined(layouts, dim);
  Tensors locals;
  for (size_t i = 0; i < tensors.size(); ++i) {
    locals.push_back(local_as(tensors[i], make_spec(mesh, selected(layout.operands[i], dim, 0))));
  }
  return wrap(at::stack(locals, dim), make_spec(mesh, std::move(layout.result)));
}

const Movement kCat = {
    "any Shard, equal on all operands, the joined dimension whole; a Partial that "
    "all have",
    "another Partial is reduced; operands sharded otherwise move to the largest "
    "one's layout; along a cut dimension what the split rule gives to another "
    "rank",
    "as slice"};
const Movement kStack = {"any Shard, equal on all operands; a Partial that all have",
                         "another Partial is reduced; operands sharded otherwise move to the "
                         "largest one's layout",
                         "nothing"};

const bool kRegistered = OperatorFamily("joining")
                             .below_autograd("aten::cat", &cat, kCat)
                             .below_autograd("aten::stack", &stack, kStack)
                             .registered();

}  // namespace
}  // namespace meshrun
