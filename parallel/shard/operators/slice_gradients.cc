// The gradient of a row, or of a range, of a cut dimension: where the tensor lies, so that nobody
// holds zeros for the rows of others. Likewise of all pieces that a tensor is split into: an unused
// one is zeros of this rank's part. LibTorch's own formulas know the global shape alone.
//
// Views as LibTorch makes them, with another node: writes through them are recorded as ever.
#include <utility>
#include <vector>

#include "ATen/WrapDimUtils.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/select.h"
#include "ATen/ops/select_backward.h"
#include "ATen/ops/slice.h"
#include "ATen/ops/slice_backward.h"
#include "ATen/ops/split.h"
#include "ATen/ops/split_with_sizes.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/unbind.h"
#include "ATen/ops/unsafe_split.h"
#include "ATen/ops/unsafe_split_with_sizes.h"
#include "parallel/collectives/tie.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/layout/view_layout.h"
#include "parallel/shard/operators/view_parts.h"
#include "third_party/libtorch/shims.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"

namespace meshrun {
namespace {

using torch::autograd::variable_list;

// Without the handlers here.
template <typename Call>
auto plainly(const Call& call) {
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

// The pieces that follow each other along `dim`, or its single indices.
struct SplitNode : CutNode {
  std::vector<SliceRange> ranges;  // of each output; empty: output i is index i, without `dim`

  std::string name() const override { return "SplitOfShardedBackward"; }
  variable_list apply(variable_list&& gradients) override {
    const bool drops = ranges.empty();
    const auto d = static_cast<size_t>(dim);
    const int64_t begin = spec->box().offsets[d];
    const int64_t end = begin + spec->box().sizes[d];
    variable_list parts(gradients.size());
    at::Tensor any;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      const auto index = static_cast<int64_t>(i);
      parts[i] = local_part(gradients[i], drops ? selected(spec->layout(), dim, index)
                                                : sliced(spec->layout(), dim, ranges[i]));
      any = parts[i];
    }
    if (!any.defined()) return {at::Tensor()};
    variable_list own;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      if (drops && (index < begin || index >= end)) continue;
      std::vector<int64_t> shape = spec->local_shape();
      if (drops) {
        shape.erase(shape.begin() + dim);
      } else {
        shape[d] = ranges[i].within(begin, end - begin).size();
      }
      own.push_back(parts[i].defined() ? parts[i] : any.new_zeros(shape));
    }
    at::Tensor whole = own.empty() ? any.new_zeros(spec->local_shape())
                       : drops     ? at::stack(own, dim)
                                   : at::cat(own, dim);
    // Other ranks' indices: their gradients take part in a second derivative here, too.
    for (size_t i = 0; drops && i < parts.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      if ((index < begin || index >= end) && parts[i].defined()) whole = tie(whole, parts[i]);
    }
    return {from_local(whole, spec)};
  }
};

// The view that `call` makes, with `node` as its gradient.
template <typename Call>
at::Tensor with_node(const at::Tensor& self, const libtorch::NodePtr<CutNode>& node, int64_t dim,
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

// The same of all views at once.
template <typename Call>
std::vector<at::Tensor> with_one_node(const at::Tensor& self,
                                      const libtorch::NodePtr<CutNode>& node, int64_t dim,
                                      const Call& call) {
  node->spec = gradient_spec(spec_of(self));
  node->dim = dim;
  node->set_next_edges(torch::autograd::collect_next_edges(self));
  std::vector<at::Tensor> views = plainly([&] {
    const at::AutoDispatchBelowAutograd guard;
    return call();
  });
  for (const at::Tensor& view : views) torch::autograd::set_history(view, node);
  return views;
}

bool is_recorded(const at::Tensor& self) {
  return c10::GradMode::is_enabled() && self.requires_grad() && self.dim() > 0;
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
  auto node = libtorch::make_node<SelectOfCut>();
  node->index = index < 0 ? index + extent : index;
  return with_node(self, node, along, call);
}

at::Tensor slice_recorded(const at::Tensor& self, int64_t dim, std::optional<int64_t> start,
                          std::optional<int64_t> end, int64_t step) {
  const auto call = [&] { return at::slice(self, dim, start, end, step); };
  if (self.dim() == 0 || step <= 0) return plainly(call);
  const int64_t along = at::maybe_wrap_dim(dim, self.dim());
  if (!is_recorded(self, along)) return plainly(call);
  auto node = libtorch::make_node<SliceOfCut>();
  node->range = slice_range(self.size(along), start, end, step);
  return with_node(self, node, along, call);
}

// As in slices.cc, so that the table has one row for both levels.
const Movement kSplitMovement = {
    "any", "nothing: each rank keeps what it has of the range, which may be uneven", "nothing"};
const Movement kUnbindMovement = {"any", "nothing: one index of a cut dimension is Partial(sum)",
                                  "nothing; a gradient along a cut dimension is whole"};

// `call` makes the pieces, of which the shapes are known then.
template <typename Call>
std::vector<at::Tensor> split_recorded(const at::Tensor& self, int64_t dim, const Call& call) {
  if (!is_recorded(self)) return plainly(call);
  const int64_t along = at::maybe_wrap_dim(dim, self.dim());
  const auto node = libtorch::make_node<SplitNode>();
  std::vector<at::Tensor> pieces = with_one_node(self, node, along, call);
  int64_t start = 0;
  for (const at::Tensor& piece : pieces) {
    node->ranges.push_back({start, start + piece.size(along)});
    start += piece.size(along);
  }
  return pieces;
}

std::vector<at::Tensor> split_of_one_node(const at::Tensor& self, int64_t size, int64_t dim) {
  return split_recorded(self, dim, [&] { return at::split(self, size, dim); });
}
std::vector<at::Tensor> split_with_sizes_of_one_node(const at::Tensor& self, at::IntArrayRef sizes,
                                                     int64_t dim) {
  return split_recorded(self, dim, [&] { return at::split_with_sizes(self, sizes, dim); });
}
std::vector<at::Tensor> unsafe_split_of_one_node(const at::Tensor& self, int64_t size,
                                                 int64_t dim) {
  return split_recorded(self, dim, [&] { return at::unsafe_split(self, size, dim); });
}
std::vector<at::Tensor> unsafe_split_with_sizes_of_one_node(const at::Tensor& self,
                                                            at::IntArrayRef sizes, int64_t dim) {
  return split_recorded(self, dim, [&] { return at::unsafe_split_with_sizes(self, sizes, dim); });
}

std::vector<at::Tensor> unbind_of_one_node(const at::Tensor& self, int64_t dim) {
  const auto call = [&] { return at::unbind(self, dim); };
  if (!is_recorded(self)) return plainly(call);
  const int64_t along = at::maybe_wrap_dim(dim, self.dim());
  // A dimension without elements gives no views, so there is no gradient to record.
  if (self.size(along) == 0) return plainly(call);
  return with_one_node(self, libtorch::make_node<SplitNode>(), along, call);
}

const bool kRegistered =
    OperatorFamily("views")
        .above_autograd("aten::split.Tensor", &split_of_one_node, kSplitMovement)
        .above_autograd("aten::split_with_sizes", &split_with_sizes_of_one_node, kSplitMovement)
        .above_autograd("aten::unsafe_split.Tensor", &unsafe_split_of_one_node, kSplitMovement)
        .above_autograd("aten::unsafe_split_with_sizes", &unsafe_split_with_sizes_of_one_node,
                        kSplitMovement)
        .above_autograd("aten::unbind.int", &unbind_of_one_node, kUnbindMovement)
        .above_autograd("aten::select.int", &select_recorded, kSelectMovement)
        .above_autograd("aten::slice.Tensor", &slice_recorded, kSliceMovement)
        .registered();

}  // namespace
}  // namespace meshrun
