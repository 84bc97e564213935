#include "parallel/shard/operators/product.h"

#include <utility>

#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/dispatch/same_mesh.h"

namespace meshrun {
namespace {

ShardMesh::Ptr mesh_of_operands(const Product& product) {
  ShardMesh::Ptr mesh;
  for (const at::Tensor& operand : product.operands) {
    require_same_mesh(mesh, operand, product.name);
  }
  return mesh;
}

ContractionLayout plan(const Product& product, const ShardMesh& mesh) {
  std::vector<Factor> factors;
  for (size_t i = 0; i < product.operands.size(); ++i) {
    const at::Tensor& operand = product.operands[i];
    const ShardTensorImpl* impl = shard_impl(operand);
    factors.push_back({impl == nullptr ? nullptr : &impl->spec()->layout(), operand.sizes().vec(),
                       product.labels[i], static_cast<int>(i) == product.summand});
  }
  return with_shard_errors(
      [&] { return contraction(mesh.shape(), factors, product.result, product.whole); });
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

SpecPtr spec_at(const SpecPtr& present, ShardLayout layout) {
  return present->layout() == layout ? present : make_spec(present->mesh(), std::move(layout));
}

}  // namespace

at::Tensor product_below_autograd(const Product& product, const LocalProduct& local) {
  const ShardMesh::Ptr mesh = mesh_of_operands(product);
  ContractionLayout layouts = plan(product, *mesh);
  std::vector<at::Tensor> locals;
  for (size_t i = 0; i < product.operands.size(); ++i) {
    const at::Tensor& operand = product.operands[i];
    const ShardTensorImpl* impl = shard_impl(operand);
    if (impl == nullptr) check_promotion(operand, product.name);
    const SpecPtr from = impl == nullptr ? replicated_spec(mesh, operand.sizes()) : impl->spec();
    locals.push_back(redistribute_local(impl == nullptr ? operand : impl->local(), from,
                                        spec_at(from, std::move(layouts.factors[i]))));
  }
  SpecPtr result = make_spec(mesh, std::move(layouts.result));
  const bool adds = adds_summand(*result);
  return wrap(local(locals, adds), std::move(result));
}

at::Tensor product_above_autograd(const Product& product, const LocalProduct& local) {
  const ShardMesh::Ptr mesh = mesh_of_operands(product);
  ContractionLayout layouts = plan(product, *mesh);
  std::vector<at::Tensor> locals;
  for (size_t i = 0; i < product.operands.size(); ++i) {
    const at::Tensor operand = promote(product.operands[i], mesh);
    const at::Tensor moved =
        redistribute(operand, spec_at(spec_of(operand), std::move(layouts.factors[i])));
    locals.push_back(to_local(moved, spec_at(spec_of(moved), std::move(layouts.gradients[i]))));
  }
  SpecPtr result = make_spec(mesh, std::move(layouts.result));
  const bool adds = adds_summand(*result);
  return from_local(local(locals, adds), result);
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
