#include "parallel/shard/operators/product.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ATen/core/DimVector.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/zeros.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/redistribute/redistribution_plans.h"
#include "parallel/shard/tensor/shard_tensor_spec.h"

namespace meshrun {
namespace {

std::vector<int> as_vector(const ProductLabels& labels) { return {labels.begin(), labels.end()}; }

// Layouts in the order of ProductSpecs.
std::vector<ShardLayout> layouts_of(const Product& product, const ShardMesh& mesh) {
  std::vector<ShardLayout> all;
  std::vector<Factor> factors;
  for (size_t i = 0; i < product.operands.size(); ++i) {
    const at::Tensor& operand = product.operands[i];
    const ShardTensorImpl* impl = shard_impl(operand);
    factors.push_back({impl == nullptr ? nullptr : &impl->spec()->layout(), operand.sizes().vec(),
                       as_vector(product.labels[i]), static_cast<int>(i) == product.summand});
    all.push_back(impl == nullptr ? replicated_layout(mesh, operand.sizes())
                                  : impl->spec()->layout());
  }
  ContractionLayout made =
      contraction(mesh.shape(), factors, as_vector(product.result), as_vector(product.whole));
  for (auto* layouts : {&made.factors, &made.gradients}) {
    for (ShardLayout& layout : *layouts) all.push_back(std::move(layout));
  }
  all.push_back(std::move(made.result));
  return all;
}

// The rule of products whose labels are in the key.
const char kProductRule = 0;

// Layouts as specs: of the operands as they came (a plain one is Replicate), as factors of the
// product, of their gradients; and of the result.
class ProductSpecs {
 public:
  ProductSpecs(DerivedSpecs specs, size_t num_factors)
      : specs_(std::move(specs)), num_factors_(num_factors) {}

  const SpecPtr& operand(size_t i) const { return specs_[i]; }
  const SpecPtr& factor(size_t i) const { return specs_[num_factors_ + i]; }
  const SpecPtr& gradient(size_t i) const { return specs_[2 * num_factors_ + i]; }
  const SpecPtr& result() const { return specs_.back(); }

 private:
  DerivedSpecs specs_;
  size_t num_factors_;
};

ProductSpecs product_specs(const Product& product, const ShardMesh& mesh) {
  const bool has_labels = product.rule == nullptr;
  c10::SmallVector<int64_t, 48> key = {rule_number(has_labels ? &kProductRule : product.rule),
                                       product.summand};
  const auto add = [&](const auto& numbers) {
    key.push_back(static_cast<int64_t>(numbers.size()));
    key.append(numbers.begin(), numbers.end());
  };
  c10::SmallVector<const SpecPtr*, 4> sharded;
  for (size_t i = 0; i < product.operands.size(); ++i) {
    const at::Tensor& operand = product.operands[i];
    if (const ShardTensorImpl* impl = shard_impl(operand)) {
      sharded.push_back(&impl->spec());
      key.push_back(-1);
    } else {
      add(operand.sizes());
    }
    if (has_labels) add(product.labels[i]);
  }
  if (has_labels) {
    add(product.result);
    add(product.whole);
  }
  return {derived_specs(key, sharded, [&] { return layouts_of(product, mesh); }),
          product.operands.size()};
}

// Where ranks have summands, the first one of each axis adds.
bool adds_summand(const ShardTensorSpec& result) {
  for (size_t axis = 0; axis < result.placements().size(); ++axis) {
    if (result.placements()[axis].is_partial() && result.mesh()->coordinate()[axis] != 0) {
      return false;
    }
  }
  return true;
}

// Nothing of it is recorded.
at::Tensor unrecorded(const Product& product, const ProductSpecs& specs, LocalProduct local) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  c10::SmallVector<at::Tensor, 3> locals;
  for (size_t i = 0; i < product.operands.size(); ++i) {
    const at::Tensor& operand = product.operands[i];
    const ShardTensorImpl* impl = shard_impl(operand);
    locals.push_back(redistribute_local(impl == nullptr ? operand : impl->local(), specs.operand(i),
                                        specs.factor(i)));
  }
  at::Tensor part = local(locals, adds_summand(*specs.result()));
  // An einsum of one operand may be a view of it.
  const bool is_view = locals.size() == 1 && part.is_alias_of(local_of(product.operands[0]));
  if (!is_view) return wrap(std::move(part), specs.result());
  const at::Tensor result = wrap(part.detach(), specs.result());
  count_writes_with(result, product.operands[0]);
  return result;
}

}  // namespace

at::Tensor product_below_autograd(const Product& product, LocalProduct local) {
  const ShardMesh::Ptr mesh = mesh_of(product.operands, product.name);
  const ProductSpecs specs = product_specs(product, *mesh);
  for (const at::Tensor& operand : product.operands) {
    if (!is_shard_tensor(operand)) check_promotion(operand, product.name);
  }
  return unrecorded(product, specs, local);
}

at::Tensor product_above_autograd(const Product& product, LocalProduct local) {
  const ShardMesh::Ptr mesh = mesh_of(product.operands, product.name);
  const ProductSpecs specs = product_specs(product, *mesh);
  const bool is_recorded =
      std::any_of(product.operands.begin(), product.operands.end(), &wants_gradient);
  if (!is_recorded) return unrecorded(product, specs, local);
  c10::SmallVector<at::Tensor, 3> locals;
  for (size_t i = 0; i < product.operands.size(); ++i) {
    const at::Tensor moved =
        redistribute(promote(product.operands[i], specs.operand(i)), specs.factor(i));
    locals.push_back(to_local(moved, specs.gradient(i)));
  }
  return from_local(local(locals, adds_summand(*specs.result())), specs.result());
}

at::Tensor fixed_product(const FixedProduct& product, const at::Tensor& a, const at::Tensor& b,
                         LocalFixedProduct local) {
  const ShardTensorImpl* left = shard_impl(a);
  const ShardTensorImpl* right = shard_impl(b);
  if (left == nullptr || right == nullptr || left->spec()->mesh() != right->spec()->mesh()) {
    return product_below_autograd(
        {product.name, {a, b}, {product.of_a, product.of_b}, product.result},
        [local](at::TensorList locals, bool) { return local(locals[0], locals[1]); });
  }
  const DerivedSpecs specs =
      derived_specs({rule_number(&product)}, {&left->spec(), &right->spec()}, [&] {
        ContractionLayout made = contraction(
            left->spec()->layout().mesh_shape(),
            {{&left->spec()->layout(), left->spec()->global_shape(), as_vector(product.of_a)},
             {&right->spec()->layout(), right->spec()->global_shape(), as_vector(product.of_b)}},
            as_vector(product.result));
        std::vector<ShardLayout> layouts = std::move(made.factors);
        layouts.push_back(std::move(made.result));
        return layouts;
      });
  return wrap(local(redistribute_local(left->local(), left->spec(), specs[0]),
                    redistribute_local(right->local(), right->spec(), specs[1])),
              specs[2]);
}

at::Tensor small_stand_in(const at::Tensor& operand) {
  at::DimVector shape(operand.sizes());
  for (int64_t& extent : shape) extent = std::min<int64_t>(extent, 2);
  return at::zeros(shape,
                   at::TensorOptions().dtype(operand.scalar_type()).device(operand.device()));
}

ProductLabels trailing_labels(const at::Tensor& operand, c10::ArrayRef<int> labels,
                              at::IntArrayRef extents) {
  ProductLabels own;
  const auto shift = static_cast<int64_t>(labels.size()) - operand.dim();
  for (int64_t d = 0; d < operand.dim(); ++d) {
    // What does not fit is left to the local operator, which says so.
    const bool fits = d + shift >= 0 && operand.size(d) == extents[static_cast<size_t>(d + shift)];
    own.push_back(fits ? labels[static_cast<size_t>(d + shift)] : kBroadcastLabel);
  }
  return own;
}

}  // namespace meshrun
