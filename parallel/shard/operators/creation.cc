// New tensors like a sharded one: of its layout, each rank its part. Where it is Partial they are
// Replicate: they hold values, not summands.
#include <utility>

#include "ATen/core/LegacyTypeDispatch.h"
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
  return wrap(Like(local_of(self), options_of(dtype, layout, device, pin), format),
              gradient_spec(spec_of(self)));
}

at::Tensor full_like(const at::Tensor& self, const at::Scalar& value, Dtype dtype, Layout layout,
                     OnDevice device, std::optional<bool> pin, Format format) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return wrap(
      at::full_like(local_of(self), value, options_of(dtype, layout, device, pin), format),
      gradient_spec(spec_of(self)));
}

using LikeFunction = at::Tensor (*)(const at::Tensor&, at::TensorOptions, Format);
constexpr LikeFunction kEmpty = &at::empty_like;
constexpr LikeFunction kZeros = &at::zeros_like;
constexpr LikeFunction kOnes = &at::ones_like;

const Movement kLike = {"any; the result is Replicate where the tensor is Partial", "nothing", ""};

const bool kRegistered = OperatorFamily("creation")
                             .below_autograd("aten::empty_like", &like<kEmpty>, kLike)
                             .below_autograd("aten::zeros_like", &like<kZeros>, kLike)
                             .below_autograd("aten::ones_like", &like<kOnes>, kLike)
                             .below_autograd("aten::full_like", &full_like, kLike)
                             .registered();

}  // namespace
}  // namespace meshrun
