// Quantiles. LibTorch's composite operator reads the memory of what it sorts, so it runs on parts:
// the dimension is whole on every rank.
#include <optional>
#include <string>
#include <utility>

#include "ATen/WrapDimUtils.h"
#include "ATen/ops/nanquantile.h"
#include "ATen/ops/quantile.h"
#include "ATen/ops/zeros.h"
#include "parallel/shard/dispatch/fallback.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/layout/view_layout.h"

namespace meshrun {
namespace {

using at::Tensor;
using Dim = std::optional<int64_t>;

Tensor at_numbers(const Tensor& numbers) { return gathered(numbers); }
double at_numbers(double number) { return number; }
bool has_list(const Tensor& numbers) { return numbers.dim() > 0; }
bool has_list(double /*number*/) { return false; }
int64_t length_of(const Tensor& numbers) { return numbers.numel(); }
int64_t length_of(double /*number*/) { return 1; }

// `Quantile`: LibTorch's operator for a Tensor of numbers, or for one.
template <auto Quantile, typename Numbers>
Tensor quantile(const Tensor& self, Numbers q, Dim dim, bool keepdim, c10::string_view how) {
  // The numbers alone may be sharded.
  const ShardMesh::Ptr mesh = mesh_of({&self}, "quantile");
  const auto numbers = at_numbers(q);
  if (!dim || self.dim() == 0) {
    const Tensor whole = redistribute(self, replicated_spec(mesh, self.sizes()));
    const Tensor result = Quantile(to_local(whole), numbers, dim, keepdim, how);
    return from_local(result, replicated_spec(mesh, result.sizes()));
  }
  const int64_t along = at::maybe_wrap_dim(*dim, self.dim());
  const Tensor input = redistribute(self, with_whole_dims(spec_of(self), {along}));
  const SpecPtr& spec = spec_of(input);
  ShardLayout layout =
      keepdim ? with_extent(spec->layout(), along, 1) : selected(spec->layout(), along, 0);
  if (has_list(numbers)) layout = with_dim(layout, 0, length_of(numbers));
  const SpecPtr result = make_spec(mesh, std::move(layout));
  const Tensor local = to_local(input);
  if (local.numel() > 0 || self.numel() == 0) {
    return from_local(Quantile(local, numbers, along, keepdim, how), result);
  }
  // A rank without elements finds the same wrong arguments, and has its part of the graph.
  Quantile(at::zeros({1}, local.options()), numbers, 0, keepdim, how);
  return from_local(local.sum(along, keepdim).expand(result->local_shape()), result);
}

using OfTensor = Tensor (*)(const Tensor&, const Tensor&, Dim, bool, c10::string_view);
using OfNumber = Tensor (*)(const Tensor&, double, Dim, bool, c10::string_view);
constexpr OfTensor kQuantiles = &at::quantile;
constexpr OfNumber kQuantile = &at::quantile;
constexpr OfTensor kNanquantiles = &at::nanquantile;
constexpr OfNumber kNanquantile = &at::nanquantile;

const Movement kMovement = {
    "any with that dimension whole",
    "a Partial is reduced; a cut dimension, and without one all, is gathered", "the same way back"};

const bool kRegistered =
    OperatorFamily("indexing")
        .above_autograd("aten::quantile", &quantile<kQuantiles, const Tensor&>, kMovement)
        .above_autograd("aten::quantile.scalar", &quantile<kQuantile, double>, kMovement)
        .above_autograd("aten::nanquantile", &quantile<kNanquantiles, const Tensor&>, kMovement)
        .above_autograd("aten::nanquantile.scalar", &quantile<kNanquantile, double>, kMovement)
        .registered();

}  // namespace
}  // namespace meshrun
