// New tensors like a sharded one: of its layout, each rank its part. Where it is Partial they are
// Replicate: they hold values, not summands.
#include <utility>
#include <vector>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/full_like.h"
#include "ATen/ops/ones_like.h"
#include "ATen/ops/zeros_like.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"

namespace meshrun {
namespace {

using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using OnDevice = std::optional<at::Device>;
using Format = std::optional<at::MemoryFormat>;

at::TensorOptions options_of(Dtype dtype, Layout layout, OnDevice device, std::optional<bool> pin) {
  return at::TensorOptions().dtype(dtype).layout(layout).device(device).pinned_memory(pin);
}

template <auto Like>
at::Tensor like(const at::Tensor& self, Dtype dtype, Layout layout, OnDevice device,
                std::optional<bool> pin, Format format) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return wrap_like(Like(local_of(self), options_of(dtype, layout, device, pin), format),
                   gradient_spec(spec_of(self)), self, format.value_or(at::MemoryFormat::Preserve));
}

at::Tensor full_like(const at::Tensor& self, const at::Scalar& value, Dtype dtype, Layout layout,
                     OnDevice device, std::optional<bool> pin, Format format) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return wrap_like(
      at::full_like(local_of(self), value, options_of(dtype, layout, device, pin), format),
      gradient_spec(spec_of(self)), self, format.value_or(at::MemoryFormat::Preserve));
}

// Spec of a new tensor: the layout of `self` if the shape is the same, else Replicate.
SpecPtr new_spec(const at::Tensor& self, at::IntArrayRef size) {
  const SpecPtr spec = gradient_spec(spec_of(self));
  return size == self.sizes() ? spec : replicated_spec(spec->mesh(), size);
}

template <auto New>
at::Tensor new_tensor(const at::Tensor& self, at::IntArrayRef size, Dtype dtype, Layout layout,
                      OnDevice device, std::optional<bool> pin) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const SpecPtr spec = new_spec(self, size);
  return wrap(New(local_of(self), spec->local_shape(), options_of(dtype, layout, device, pin)),
              spec);
}

at::Tensor new_full(const at::Tensor& self, at::IntArrayRef size, const at::Scalar& value,
                    Dtype dtype, Layout layout, OnDevice device, std::optional<bool> pin) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const SpecPtr spec = new_spec(self, size);
  return wrap(
      local_of(self).new_full(spec->local_shape(), value, options_of(dtype, layout, device, pin)),
      spec);
}

// The order of the strides is kept; the local memory is dense.
at::Tensor new_empty_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                             Dtype dtype, Layout layout, OnDevice device, std::optional<bool> pin) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const SpecPtr spec = new_spec(self, size);
  const at::Tensor& local = local_of(self);
  return wrap_in_order(at::empty(spec->local_shape(),
                                 local.options().merge_in(options_of(dtype, layout, device, pin))),
                       spec, dense_strides(size, stride));
}

using NewFunction = at::Tensor (*)(const at::Tensor&, at::IntArrayRef, at::TensorOptions);
constexpr NewFunction kNewEmpty = [](const at::Tensor& t, at::IntArrayRef s, at::TensorOptions o) {
  return t.new_empty(s, o);
};
constexpr NewFunction kNewZeros = [](const at::Tensor& t, at::IntArrayRef s, at::TensorOptions o) {
  return t.new_zeros(s, o);
};
constexpr NewFunction kNewOnes = [](const at::Tensor& t, at::IntArrayRef s, at::TensorOptions o) {
  return t.new_ones(s, o);
};

using LikeFunction = at::Tensor (*)(const at::Tensor&, at::TensorOptions, Format);
constexpr LikeFunction kEmpty = &at::empty_like;
constexpr LikeFunction kZeros = &at::zeros_like;
constexpr LikeFunction kOnes = &at::ones_like;

const Movement kLike = {"any; the result is Replicate where the tensor is Partial", "nothing", ""};

const Movement kNew = {"any; of another shape the result is Replicate", "nothing", ""};

const bool kRegistered = OperatorFamily("creation")
                             .below_autograd("aten::empty_like", &like<kEmpty>, kLike)
                             .below_autograd("aten::zeros_like", &like<kZeros>, kLike)
                             .below_autograd("aten::ones_like", &like<kOnes>, kLike)
                             .below_autograd("aten::full_like", &full_like, kLike)
                             .below_autograd("aten::new_empty", &new_tensor<kNewEmpty>, kNew)
                             .below_autograd("aten::new_zeros", &new_tensor<kNewZeros>, kNew)
                             .below_autograd("aten::new_ones", &new_tensor<kNewOnes>, kNew)
                             .below_autograd("aten::new_full", &new_full, kNew)
                             .below_autograd("aten::new_empty_strided", &new_empty_strided, kNew)
                             .registered();

}  // namespace
}  // namespace meshrun
