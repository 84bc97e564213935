// Largest and smallest elements and their global indices. Ties are broken and gradients shared
// among equal elements as LibTorch does it on the whole tensor; NaN wins.
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/Dispatch.h"
#include "ATen/Functions.h"
#include "parallel/collectives/tie.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/operators/assign.h"
#include "parallel/shard/operators/equal_elements.h"
#include "parallel/shard/operators/moments.h"
#include "parallel/shard/operators/reduced.h"
#include "torch/csrc/autograd/custom_function.h"

namespace meshrun {

// reduced.cc: a value that all ranks along the axes have, for each rank's own part of a
// computation. Its gradient is the sum of theirs.
at::Tensor on_each_rank(const at::Tensor& value, const ShardMesh::Ptr& mesh,
                        const std::vector<int64_t>& axes);

namespace {

using Dims = std::vector<int64_t>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kNoIndex = std::numeric_limits<int64_t>::max();

// Any element is larger (smaller), or equal.
at::Scalar worst(at::ScalarType type, bool is_max) {
  if (at::isFloatingType(type)) {
    const double infinity = std::numeric_limits<double>::infinity();
    return is_max ? -infinity : infinity;
  }
  at::Scalar value;
  AT_DISPATCH_INTEGRAL_TYPES_AND(at::kBool, type, "extreme", [&] {
    value = is_max ? std::numeric_limits<scalar_t>::lowest() : std::numeric_limits<scalar_t>::max();
  });
  return value;
}

Dims kept_shape(at::IntArrayRef shape, const Dims& dims) {
  Dims kept = shape.vec();
  for (const int64_t dim : dims) kept[static_cast<size_t>(dim)] = 1;
  return kept;
}

// Extreme of this rank's part along `dims`, or the worst value if the part has no elements. The
// dimensions stay, with extent 1.
at::Tensor own_extreme(const at::Tensor& local, const Dims& dims, bool is_max) {
  if (dims.empty()) return local;
  if (reduced_count(local.sizes(), dims) == 0) {
    return at::full(kept_shape(local.sizes(), dims), worst(local.scalar_type(), is_max),
                    local.options());
  }
  return is_max ? at::amax(local, dims, true) : at::amin(local, dims, true);
}

void save_spec(AutogradContext* ctx, const SpecPtr& spec) {
  ctx->saved_data.emplace("spec", c10::IValue::make_capsule(spec));
}

SpecPtr saved_spec(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<ShardTensorSpec>(
      ctx->saved_data.at("spec").toCapsule());
}

struct Extreme : torch::autograd::Function<Extreme> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& local, const SpecPtr& spec,
                            const Dims& dims, bool is_max) {
    const at::Tensor value = combined(
        own_extreme(local, dims, is_max), spec, dims,
        [&](const at::Tensor& all) { return is_max ? at::amax(all, 0) : at::amin(all, 0); });
    ctx->save_for_backward({local, value});
    ctx->saved_data["dims"] = dims;
    save_spec(ctx, spec);
    return value;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const Dims dims = ctx->saved_data["dims"].toIntVector();
    const SpecPtr spec = saved_spec(ctx);
    return {shared_among_equal(gradients[0], saved[0], saved[1], spec, dims), {}, {}, {}};
  }
};

at::Tensor extreme(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, bool is_max) {
  const at::Tensor input = without_summands(self);
  const SpecPtr& spec = spec_of(input);
  const Dims dims = reduced_dims(dim, input.dim());
  const at::Tensor local = to_local(input);
  const SpecPtr result = reduced_spec(spec, dims, keepdim, Replicate());
  TORCH_CHECK_INDEX(reduced_count(spec->global_shape(), dims) > 0,
                    "the largest or smallest of no elements: the tensor is ", self.sizes());
  return from_local(dropped(Extreme::apply(local, spec, dims, is_max), dims, keepdim), result);
}

template <bool IsMax>
at::Tensor extreme_dims(const at::Tensor& self, at::IntArrayRef dim, bool keepdim) {
  return extreme(self, dim, keepdim, IsMax);
}
template <bool IsMax>
at::Tensor extreme_all(const at::Tensor& self) {
  return extreme(self, {}, false, IsMax);
}
std::tuple<at::Tensor, at::Tensor> aminmax(const at::Tensor& self, std::optional<int64_t> dim,
                                           bool keepdim) {
  const at::OptionalIntArrayRef dims =
      dim ? at::OptionalIntArrayRef(at::IntArrayRef(*dim)) : at::OptionalIntArrayRef();
  return {extreme(self, dims, keepdim, false), extreme(self, dims, keepdim, true)};
}

// Values and global indices of all ranks with a part of `dims`: of equal values, the first.
struct Found {
  at::Tensor values;
  at::Tensor indices;
};

Found first_of_all(Found own, const SpecPtr& spec, const Dims& dims, bool is_max) {
  for (const int64_t axis : axes_that_cut(*spec, dims)) {
    const at::Tensor values = stacked_along(own.values, *spec->mesh(), axis);
    const at::Tensor indices = stacked_along(own.indices, *spec->mesh(), axis);
    own.values = is_max ? at::amax(values, 0) : at::amin(values, 0);
    own.indices = at::amin(
        at::where(is_at(values, own.values), indices, at::full({}, kNoIndex, indices.options())),
        0);
  }
  return own;
}

// Along one dimension, which stays.
Found find_along(const at::Tensor& local, const SpecPtr& spec, int64_t dim, bool is_max) {
  const Dims dims = {dim};
  Found own;
  if (local.size(dim) == 0) {
    own.values = own_extreme(local, dims, is_max);
    own.indices = at::full_like(own.values, kNoIndex, at::kLong);
  } else {
    std::tie(own.values, own.indices) =
        is_max ? at::max(local, dim, true) : at::min(local, dim, true);
    own.indices = own.indices + spec->box().offsets[static_cast<size_t>(dim)];
  }
  return first_of_all(std::move(own), spec, dims, is_max);
}

// The values at `indices`, which one rank has: its gradient goes there.
struct ValuesAt : torch::autograd::Function<ValuesAt> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& local, const at::Tensor& values,
                            const at::Tensor& own_indices, const SpecPtr& spec, int64_t dim) {
    ctx->save_for_backward({own_indices});
    save_spec(ctx, spec);
    ctx->saved_data["shape"] = local.sizes().vec();
    ctx->saved_data["dim"] = dim;
    return values.clone();
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor indices = ctx->get_saved_variables()[0];
    const Dims shape = ctx->saved_data["shape"].toIntVector();
    const int64_t dim = ctx->saved_data["dim"].toInt();
    const SpecPtr spec = saved_spec(ctx);
    const int64_t extent = shape[static_cast<size_t>(dim)];
    const at::Tensor values = on_each_rank(gradients[0], spec->mesh(), axes_that_cut(*spec, {dim}));
    const at::Tensor zeros = at::zeros(shape, values.options());
    if (extent == 0) return {tie(zeros, values), {}, {}, {}, {}};
    const at::Tensor inside = (indices >= 0).logical_and(indices < extent);
    return {
        at::scatter_add(zeros, dim, indices.clamp(0, extent - 1), values * inside), {}, {}, {}, {}};
  }
};

template <bool IsMax>
std::tuple<at::Tensor, at::Tensor> extreme_with_indices(const at::Tensor& self, int64_t dim,
                                                        bool keepdim) {
  const at::Tensor input = without_summands(self);
  const SpecPtr& spec = spec_of(input);
  const Dims dims = reduced_dims(at::IntArrayRef(dim), input.dim());
  const at::Tensor local = to_local(input);
  const SpecPtr result = reduced_spec(spec, dims, keepdim, Replicate());
  if (dims.empty() || axes_that_cut(*spec, dims).empty()) {
    const auto [values, indices] =
        IsMax ? at::max(local, dim, keepdim) : at::min(local, dim, keepdim);
    return {from_local(values, result), from_local(indices, result)};
  }
  TORCH_CHECK_INDEX(input.size(dims[0]) > 0,
                    "the largest or smallest of no elements: the tensor is ", self.sizes());
  const Found found = find_along(local.detach(), spec, dims[0], IsMax);
  const at::Tensor own = found.indices - spec->box().offsets[static_cast<size_t>(dims[0])];
  const at::Tensor values = ValuesAt::apply(local, found.values, own, spec, dims[0]);
  return {from_local(dropped(values, dims, keepdim), result),
          from_local(dropped(found.indices, dims, keepdim), result)};
}

// Extreme of the flattened tensor, with its index: first the index in this rank's box, then the
// index in the whole tensor.
Found find_in_all(const at::Tensor& local, const SpecPtr& spec, bool is_max) {
  const Dims dims = reduced_dims({}, local.dim());
  Found own;
  if (local.numel() == 0) {
    own.values = at::full({}, worst(local.scalar_type(), is_max), local.options());
    own.indices = at::full({}, kNoIndex, local.options().dtype(at::kLong));
    return first_of_all(std::move(own), spec, dims, is_max);
  }
  const at::Tensor flat = local.reshape({-1});
  at::Tensor left;
  std::tie(own.values, left) = is_max ? at::max(flat, 0) : at::min(flat, 0);
  own.indices = at::zeros_like(left);
  int64_t stride = 1;
  for (int64_t d = local.dim() - 1; d >= 0; --d) {
    const auto dim = static_cast<size_t>(d);
    const at::Tensor place = left.remainder(local.size(d)) + spec->box().offsets[dim];
    own.indices = own.indices + place * stride;
    left = left.floor_divide(local.size(d));
    stride *= spec->global_shape()[dim];
  }
  return first_of_all(std::move(own), spec, dims, is_max);
}

template <bool IsMax>
at::Tensor index_of_extreme(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim) {
  const at::Tensor input = without_summands(self);
  const SpecPtr& spec = spec_of(input);
  const at::Tensor& local = local_of(input);
  const Dims dims =
      dim ? reduced_dims(at::IntArrayRef(*dim), input.dim()) : reduced_dims({}, input.dim());
  TORCH_CHECK_INDEX(reduced_count(spec->global_shape(), dims) > 0,
                    "the largest or smallest of no elements: the tensor is ", self.sizes());
  const SpecPtr result = reduced_spec(spec, dims, keepdim, Replicate());
  if (axes_that_cut(*spec, dims).empty()) {
    return wrap(
        IsMax ? at::argmax(local.detach(), dim, keepdim) : at::argmin(local.detach(), dim, keepdim),
        result);
  }
  if (dim) {
    return wrap(dropped(find_along(local.detach(), spec, dims[0], IsMax).indices, dims, keepdim),
                result);
  }
  const at::Tensor index = find_in_all(local.detach(), spec, IsMax).indices;
  return wrap(index.reshape(result->local_shape()), result);
}

const Movement kExtreme = {"any Shard, Replicate",
                           "a Partial is reduced; one value of each rank that has a part of a "
                           "reduced dimension",
                           "the number of equal elements"};
const Movement kIndexed = {"any Shard, Replicate",
                           "a Partial is reduced; one value and its index of each rank that has a "
                           "part of the reduced dimension",
                           "nothing"};

const bool kRegistered =
    OperatorFamily("reductions")
        .above_autograd("aten::amax", &extreme_dims<true>, kExtreme)
        .above_autograd("aten::amin", &extreme_dims<false>, kExtreme)
        .below_autograd("aten::amax.out", &Into<&extreme_dims<true>>::call, kExtreme)
        .below_autograd("aten::amin.out", &Into<&extreme_dims<false>>::call, kExtreme)
        .below_autograd("aten::argmax.out", &Into<&index_of_extreme<true>>::call, kIndexed)
        .below_autograd("aten::argmin.out", &Into<&index_of_extreme<false>>::call, kIndexed)
        .above_autograd("aten::max", &extreme_all<true>, kExtreme)
        .above_autograd("aten::min", &extreme_all<false>, kExtreme)
        .above_autograd("aten::aminmax", &aminmax, kExtreme)
        .above_autograd("aten::max.dim", &extreme_with_indices<true>, kIndexed)
        .above_autograd("aten::min.dim", &extreme_with_indices<false>, kIndexed)
        .above_autograd("aten::argmax", &index_of_extreme<true>, kIndexed)
        .above_autograd("aten::argmin", &index_of_extreme<false>, kIndexed)
        .registered();

}  // namespace
}  // namespace meshrun
