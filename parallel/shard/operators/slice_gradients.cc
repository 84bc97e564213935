// The gradient of a row, or of a range, of a cut dimension: where the tensor lies, so that nobody
// holds zeros for the rows of others. LibTorch's own formula knows the global shape alone.
//
// Views as LibTorch makes them, with another node: writes through them are recorded as ever.
#include <memory>
#include <utility>

#include "ATen/WrapDimUtils.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/select.h"
#include "ATen/ops/select_backward.h"
#include "ATen/ops/slice.h"
#include "ATen/ops/slice_backward.h"
#include "parallel/collectives/tie.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/layout/view_layout.h"
#include "parallel/shard/operators/view_parts.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"

namespace meshrun {
namespace {

using torch::autograd::variable_list;

// Without the handlers here.
template <typename Call>
at::Tensor plainly(const Call& call) {
  const c10::impl::ExcludeDispatchKeyGuard guard(kFunctionKey);
  return call();
}

struct CutNode : torch::autograd::Node {
  SpecPtr spec;  // of the input's gradient
  int64_t dim = 0;

  // This rank's part of the gradient; `layout`: that of the view, from `spec`. Where one rank has
  // the view's values, the gradient's own gradient is a summand.
  at::Tensor local_part(const at::Tensor& gradient, const ShardLayout& layout) const {
    const SpecPtr view = make_spec(spec->mesh(), layout);
    return to_local(redistribute(promote(gradient, spec->mesh()), without_partial(view)), view);
  }
};

struct SelectOfCut : CutNode {
  int64_t index = 0;

  std::string name() const override { return "SelectOfCutBackward"; }
  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    const at::Tensor part = local_part(gradients[0], selected(spec->layout(), dim, index));
    const auto d = static_cast<size_t>(dim);
    const int64_t own = index - spec->box().offsets[d];
    const bool has = own >= 0 && own < spec->box().sizes[d];
    return {from_local(has ? at::select_backward(part, spec->local_shape(), dim, own)
                           : tie(part.new_zeros(spec->local_shape()), part),
                       spec)};
  }
};

struct SliceOfCut : CutNode {
  SliceRange range;

  std::string name() const override { return "SliceOfCutBackward"; }
  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    const at::Tensor part = local_part(gradients[0], sliced(spec->layout(), dim, range));
    const auto d = static_cast<size_t>(dim);
    const SliceRange own = range.within(spec->box().offsets[d], spec->box().sizes[d]);
    return {from_local(
        at::slice_backward(part, spec->local_shape(), dim, own.start, own.end, own.step), spec)};
  }
};

// The view that `call` makes, with `node` as its gradient.
template <typename Call>
at::Tensor with_node(const at::Tensor& self, const std::shared_ptr<CutNode>& node, int64_t dim,
                     const Call& call) {
  node->spec = gradient_spec(spec_of(self));
  node->dim = dim;
  node->set_next_edges(torch::autograd::collect_next_edges(self));
  at::Tensor view = plainly([&] {
    const at::AutoDispatchBelowAutograd guard;
    return call();
  });
  torch::autograd::set_history(view, node);
  return view;
}

bool is_recorded(const at::Tensor& self, int64_t dim) {
  return c10::GradMode::is_enabled() && self.requires_grad() && spec_of(self)->is_sharded(dim);
}

at::Tensor select_recorded(const at::Tensor& self, int64_t dim, int64_t index) {
  const auto call = [&] { return at::select(self, dim, index); };
  if (self.dim() == 0) return plainly(call);
  const int64_t along = at::maybe_wrap_dim(dim, self.dim());
  const int64_t extent = self.size(along);
  if (!is_recorded(self, along) || index < -extent || index >= extent) return plainly(call);
  auto node = std::make_shared<SelectOfCut>();
  node->index = index < 0 ? index + extent : index;
  return with_node(self, node, along, call);
}

at::Tensor slice_recorded(const at::Tensor& self, int64_t dim, std::optional<int64_t> start,
                          std::optional<int64_t> end, int64_t step) {
  const auto call = [&] { return at::slice(self, dim, start, end, step); };
  if (self.dim() == 0 || step <= 0) return plainly(call);
  const int64_t along = at::maybe_wrap_dim(dim, self.dim());
  if (!is_recorded(self, along)) return plainly(call);
  auto node = std::make_shared<SliceOfCut>();
  node->range = slice_range(self.size(along), start, end, step);
  return with_node(self, node, along, call);
}

const bool kRegistered = OperatorFamily("views")
                             .above_autograd("aten::select.int", &select_recorded, kSelectMovement)
                             .above_autograd("aten::slice.Tensor", &slice_recorded, kSliceMovement)
                             .registered();

}  // namespace
}  // namespace meshrun
