#include "parallel/shard/operators/product.h"

#include <algorithm>
#include <utility>

#include "ATen/core/DimVector.h"
#include "ATen/ops/zeros.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/redistribute/redistribution_plans.h"

namespace meshrun {
namespace {

ContractionLayout plan(const Product& product, const ShardMesh& mesh) {
  std::vector<Factor> factors;
  for (size_t i = 0; i < product.operands.size(); ++i) {
    const at::Tensor& operand = product.operands[i];
    const ShardTensorImpl* impl = shard_impl(operand);
    factors.push_back({impl == nullptr ? nullptr : &impl->spec()->layout(), operand.sizes().vec(),
                       product.labels[i], static_cast<int>(i) == product.summand});
  }
  return contraction(mesh.shape(), factors, product.result, product.whole);
}

// The rule of products whose labels are in the key; a FixedProduct's is its address.
const char kProductRule = 0;

// Layouts as specs: of the factors, of their gradients, of the result.
struct ProductSpecs {
  DerivedSpecs specs;
  size_t num_factors;

  const SpecPtr& factor(size_t i) const { return specs[i]; }
  const SpecPtr& gradient(size_t i) const { return specs[num_factors + i]; }
  const SpecPtr& result() const { return specs.back(); }
};

std::vector<ShardLayout> in_order(ContractionLayout layouts) {
  std::vector<ShardLayout> all = std::move(layouts.factors);
  for (ShardLayout& gradient : layouts.gradients) all.push_back(std::move(gradient));
  all.push_back(std::move(layouts.result));
  return all;
}

// Kept where all operands are sharded.
ProductSpecs product_specs(const Product& product, const ShardMesh::Ptr& mesh) {
  c10::SmallVector<int64_t, 32> key = {rule_number(&kProductRule), product.summand};
  const auto add_labels = [&](const std::vector<int>& labels) {
    key.push_back(static_cast<int64_t>(labels.size()));
    key.append(labels.begin(), labels.end());
  };
  c10::SmallVector<const SpecPtr*, 4> operands;
  for (size_t i = 0; i < product.operands.size(); ++i) {
    const ShardTensorImpl* impl = shard_impl(product.operands[i]);
    if (impl != nullptr) operands.push_back(&impl->spec());
    add_labels(product.labels[i]);
  }
  add_labels(product.result);
  add_labels(product.whole);
  const size_t factors = product.operands.size();
  if (operands.size() == factors) {
    return {derived_specs(key, operands, [&] { return in_order(plan(product, *mesh)); }), factors};
  }
  ProductSpecs made{{}, factors};
  for (ShardLayout& layout : in_order(with_shard_errors([&] { return plan(product, *mesh); }))) {
    const SpecPtr* same = nullptr;
    for (const SpecPtr* operand : operands) {
      if (same == nullptr && (*operand)->layout() == layout) same = operand;
    }
    made.specs.push_back(same != nullptr ? *same : make_spec(mesh, std::move(layout)));
  }
  return made;
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

}  // namespace

at::Tensor product_below_autograd(const Product& product, const LocalProduct& local) {
  const ShardMesh::Ptr mesh = mesh_of(product.operands, product.name);
  const ProductSpecs specs = product_specs(product, mesh);
  std::vector<at::Tensor> locals;
  for (size_t i = 0; i < product.operands.size(); ++i) {
    const at::Tensor& operand = product.operands[i];
    if (const ShardTensorImpl* impl = shard_impl(operand)) {
      locals.push_back(redistribute_local(impl->local(), impl->spec(), specs.factor(i)));
    } else {
      check_promotion(operand, product.name);
      locals.push_back(
          redistribute_local(operand, replicated_spec(mesh, operand.sizes()), specs.factor(i)));
    }
  }
  return wrap(local(locals, adds_summand(*specs.result())), specs.result());
}

at::Tensor product_above_autograd(const Product& product, const LocalProduct& local) {
  const ShardMesh::Ptr mesh = mesh_of(product.operands, product.name);
  const ProductSpecs specs = product_specs(product, mesh);
  std::vector<at::Tensor> locals;
  for (size_t i = 0; i < product.operands.size(); ++i) {
    const at::Tensor moved = redistribute(promote(product.operands[i], mesh), specs.factor(i));
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
        [local](const std::vector<at::Tensor>& locals, bool) {
          return local(locals[0], locals[1]);
        });
  }
  const DerivedSpecs specs =
      derived_specs({rule_number(&product)}, {&left->spec(), &right->spec()}, [&] {
        ContractionLayout layouts =
            contraction(left->spec()->layout().mesh_shape(),
                        {{&left->spec()->layout(), left->spec()->global_shape(), product.of_a},
                         {&right->spec()->layout(), right->spec()->global_shape(), product.of_b}},
                        product.result);
        layouts.gradients.clear();
        return in_order(std::move(layouts));
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

std::vector<int> trailing_labels(const at::Tensor& operand, const std::vector<int>& labels,
                                 const std::vector<int64_t>& extents) {
  std::vector<int> own;
  const auto shift = static_cast<int64_t>(labels.size()) - operand.dim();
  for (int64_t d = 0; d < operand.dim(); ++d) {
    // What does not fit is left to the local operator, which says so.
    const bool fits = d + shift >= 0 && operand.size(d) == extents[static_cast<size_t>(d + shift)];
    own.push_back(fits ? labels[static_cast<size_t>(d + shift)] : kBroadcastLabel);
  }
  return own;
}

}  // namespace meshrun
