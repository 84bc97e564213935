// Fourier transforms, one cut dimension after the other: another dimension takes its cut over, each
// rank transforms whole rows by LibTorch's kernels, and the cut goes back, or stays where it is if
// that is a transformed dimension too.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/WrapDimUtils.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/_fft_c2c.h"
#include "ATen/ops/_fft_c2r.h"
#include "ATen/ops/_fft_r2c.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/real.h"
#include "ATen/ops/zeros.h"
#include "c10/util/FunctionRef.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/layout/layout_draft.h"
#include "parallel/shard/redistribute/redistribute.h"
#include "parallel/shard/redistribute/redistribution_plans.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"
#include "torch/csrc/autograd/custom_function.h"

namespace meshrun {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Dims = std::vector<int64_t>;
using LocalTransform = c10::function_ref<Tensor(const Tensor& local, at::IntArrayRef dims)>;

const char kRecutRule = 0;

struct Recut {
  int64_t dim;
  DimCut cut;
};

// `spec` with these dimensions cut so, and of these extents.
SpecPtr recut(const SpecPtr& spec, const std::vector<Recut>& changes) {
  c10::SmallVector<int64_t, 12> key = {rule_number(&kRecutRule)};
  for (const Recut& change : changes) {
    key.push_back(change.dim);
    key.push_back(static_cast<int64_t>(change.cut.axes.size()));
    key.append(change.cut.axes.begin(), change.cut.axes.end());
    key.append(change.cut.sizes.begin(), change.cut.sizes.end());
  }
  return derived_specs(key, {&spec}, [&] {
    Placements placements = spec->placements();
    std::vector<DimCut> cuts = spec->layout().cuts();
    for (const Recut& change : changes) {
      for (Placement& placement : placements) {
        if (placement.is_shard(change.dim)) placement = Replicate();
      }
    }
    for (const Recut& change : changes) {
      for (const int64_t axis : change.cut.axes) {
        placements[static_cast<size_t>(axis)] = Shard(change.dim);
      }
      cuts[static_cast<size_t>(change.dim)] = change.cut;
    }
    return std::vector<ShardLayout>{ShardLayout::with_cuts(spec->layout().mesh_shape(),
                                                           std::move(placements), std::move(cuts))};
  })[0];
}

// A transform under way.
class Passes {
 public:
  explicit Passes(const Tensor& self) : spec_(spec_of(self)), local_(local_of(self)) {
    move_to(without_partial(spec_));
  }

  bool is_cut(int64_t dim) const { return spec_->is_sharded(dim); }
  Tensor result() && { return wrap(std::move(local_), spec_); }

  // Along whole dimensions, at once. `extent`: of the last one, in the result.
  void along_whole(const Dims& dims, int64_t extent, at::ScalarType dtype, LocalTransform call) {
    if (dims.empty()) return;
    if (extent != extent_of(dims.back())) {
      spec_ = recut(spec_, {{dims.back(), {{}, {extent}}}});
    }
    // LibTorch's CPU library refuses rows of nothing.
    local_ = local_.numel() == 0 ? at::zeros(spec_->local_shape(), local_.options().dtype(dtype))
                                 : call(local_, dims);
    done_.insert(done_.end(), dims.begin(), dims.end());
  }

  // Along a cut dimension, whose rows become whole meanwhile.
  void along_cut(int64_t dim, int64_t extent, at::ScalarType dtype, LocalTransform call) {
    const DimCut cut = spec_->layout().cuts()[static_cast<size_t>(dim)];
    const std::optional<int64_t> host = host_of(dim);
    if (!host) {
      move_to(with_whole_dims(spec_, {dim}));
      along_whole({dim}, extent, dtype, call);
      return;
    }
    const bool stays = is_done(*host);
    const std::vector<int64_t>& mesh_shape = spec_->layout().mesh_shape();
    const int64_t before = extent_of(dim);
    move_to(recut(
        spec_, {{dim, {{}, {before}}}, {*host, even_cut(mesh_shape, cut.axes, extent_of(*host))}}));
    along_whole({dim}, extent, dtype, call);
    if (stays) return;
    move_to(recut(spec_, {{*host, {{}, {extent_of(*host)}}},
                          {dim, extent == before ? cut : even_cut(mesh_shape, cut.axes, extent)}}));
  }

 private:
  int64_t extent_of(int64_t dim) const { return spec_->global_shape()[static_cast<size_t>(dim)]; }
  bool is_done(int64_t dim) const {
    return std::find(done_.begin(), done_.end(), dim) != done_.end();
  }

  void move_to(const SpecPtr& spec) {
    local_ = redistribute_local(local_, spec_, spec);
    spec_ = spec;
  }

  // The largest of the whole dimensions that `may_host`.
  template <typename MayHost>
  std::optional<int64_t> largest(const MayHost& may_host) const {
    std::optional<int64_t> found;
    for (int64_t dim = 0; dim < spec_->ndim(); ++dim) {
      if (is_cut(dim) || !may_host(dim)) continue;
      if (!found || extent_of(dim) > extent_of(*found)) found = dim;
    }
    return found;
  }

  // Dimension that takes over the cut of `dim`: one that is transformed already, where it gives
  // every rank a piece, else any that can be cut.
  std::optional<int64_t> host_of(int64_t dim) const {
    const auto pieces =
        static_cast<int64_t>(spec_->layout().cuts()[static_cast<size_t>(dim)].sizes.size());
    std::optional<int64_t> host =
        largest([&](int64_t other) { return is_done(other) && extent_of(other) >= pieces; });
    if (!host) {
      host = largest([&](int64_t other) { return !is_done(other) && extent_of(other) > 1; });
    }
    if (!host) {
      host = largest([&](int64_t other) { return is_done(other) && extent_of(other) > 1; });
    }
    return host;
  }

  SpecPtr spec_;
  Tensor local_;
  Dims done_;
};

struct Parts {
  Dims whole;
  Dims cut;
};

Dims wrapped(at::IntArrayRef dims, int64_t ndim) {
  Dims all = dims.vec();
  for (int64_t& dim : all) dim = at::maybe_wrap_dim(dim, ndim);
  return all;
}

// The first `count` of `dims`.
Parts parted(const Passes& passes, const Dims& dims, size_t count) {
  Parts parts;
  for (size_t i = 0; i < count; ++i) {
    (passes.is_cut(dims[i]) ? parts.cut : parts.whole).push_back(dims[i]);
  }
  return parts;
}

// Complex transforms along `parts` of a tensor of `shape`.
void along(Passes& passes, const Parts& parts, at::IntArrayRef shape, at::ScalarType dtype,
           int64_t normalization, bool forward) {
  const auto call = [&](const Tensor& local, at::IntArrayRef dims) {
    return at::_fft_c2c(local, dims, normalization, forward);
  };
  const auto extent = [&](int64_t dim) { return shape[static_cast<size_t>(dim)]; };
  if (!parts.whole.empty()) {
    passes.along_whole(parts.whole, extent(parts.whole.back()), dtype, call);
  }
  for (const int64_t dim : parts.cut) passes.along_cut(dim, extent(dim), dtype, call);
}

Tensor complex_to_complex(const Tensor& self, at::IntArrayRef dim, int64_t normalization,
                          bool forward) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const Dims dims = wrapped(dim, self.dim());
  Passes passes(self);
  along(passes, parted(passes, dims, dims.size()), self.sizes(), self.scalar_type(), normalization,
        forward);
  return std::move(passes).result();
}

// The last dimension comes first: what follows is complex.
Tensor compute_real_to_complex(const Tensor& self, at::IntArrayRef dim, int64_t normalization,
                               bool onesided) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const Dims dims = wrapped(dim, self.dim());
  TORCH_CHECK(!dims.empty(), "_fft_r2c must transform at least one axis");
  const int64_t last = dims.back();
  const int64_t extent = onesided ? self.size(last) / 2 + 1 : self.size(last);
  const at::ScalarType dtype = c10::toComplexType(self.scalar_type());
  const auto call = [&](const Tensor& local, at::IntArrayRef some) {
    return at::_fft_r2c(local, some, normalization, onesided);
  };
  Passes passes(self);
  Parts parts = parted(passes, dims, dims.size() - 1);
  if (passes.is_cut(last)) {
    passes.along_cut(last, extent, dtype, call);
  } else {
    parts.whole.push_back(last);
    passes.along_whole(parts.whole, extent, dtype, call);
    parts.whole.clear();
  }
  along(passes, parts, self.sizes(), dtype, normalization, /*forward=*/true);
  return std::move(passes).result();
}

// LibTorch's own derivative copies the half spectrum into new zeros of the whole one, which have no
// layout: every rank would get all of it. Padded, it stays cut.
struct RealToComplex : torch::autograd::Function<RealToComplex> {
  static Tensor forward(AutogradContext* ctx, const Tensor& self, const Dims& dims,
                        int64_t normalization, bool onesided) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["dims"] = dims;
    ctx->saved_data["normalization"] = normalization;
    ctx->saved_data["extent"] = self.size(dims.back());
    return compute_real_to_complex(self, dims, normalization, onesided);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    variable_list result(4);
    if (!gradients[0].defined()) return result;
    const Dims dims = ctx->saved_data["dims"].toIntVector();
    const int64_t last = dims.back();
    const Tensor& half = gradients[0];
    const int64_t missing = ctx->saved_data["extent"].toInt() - half.size(last);
    Dims pad(static_cast<size_t>(2 * (half.dim() - last)));
    pad.back() = missing;
    const Tensor whole = missing > 0 ? at::constant_pad_nd(half, pad) : half;
    result[0] = at::real(
        at::_fft_c2c(whole, dims, ctx->saved_data["normalization"].toInt(), /*forward=*/false));
    return result;
  }
};

Tensor real_to_complex(const Tensor& self, at::IntArrayRef dim, int64_t normalization,
                       bool onesided) {
  const Dims dims = wrapped(dim, self.dim());
  return wants_gradient(self) ? RealToComplex::apply(self, dims, normalization, onesided)
                              : compute_real_to_complex(self, dims, normalization, onesided);
}

// The last dimension comes last: what follows is real.
Tensor complex_to_real(const Tensor& self, at::IntArrayRef dim, int64_t normalization,
                       int64_t last_dim_size) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const Dims dims = wrapped(dim, self.dim());
  TORCH_CHECK(!dims.empty(), "_fft_c2r must transform at least one axis");
  const int64_t last = dims.back();
  const at::ScalarType dtype = c10::toRealValueType(self.scalar_type());
  const auto call = [&](const Tensor& local, at::IntArrayRef some) {
    return at::_fft_c2r(local, some, normalization, last_dim_size);
  };
  Passes passes(self);
  Parts parts = parted(passes, dims, dims.size() - 1);
  if (parts.cut.empty() && !passes.is_cut(last)) {
    parts.whole.push_back(last);
    passes.along_whole(parts.whole, last_dim_size, dtype, call);
    return std::move(passes).result();
  }
  along(passes, parts, self.sizes(), self.scalar_type(), normalization, /*forward=*/false);
  if (passes.is_cut(last)) {
    passes.along_cut(last, last_dim_size, dtype, call);
  } else {
    passes.along_whole({last}, last_dim_size, dtype, call);
  }
  return std::move(passes).result();
}

const Movement kPasses = {
    "any Shard of other dimensions",
    "a Partial is reduced; a cut transformed dimension: one transposition, where another "
    "transformed dimension is whole and takes the cut over; else there and back, by the largest "
    "whole dimension; gathered if there is none",
    "the same operators"};

const bool kRegistered = OperatorFamily("Fourier transforms")
                             .above_autograd("aten::_fft_r2c", &real_to_complex, kPasses)
                             .below_autograd("aten::_fft_c2c", &complex_to_complex, kPasses)
                             .below_autograd("aten::_fft_c2r", &complex_to_real, kPasses)
                             .registered();

}  // namespace
}  // namespace meshrun
