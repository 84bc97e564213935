#include "parallel/shard/tensor/leaf_gradient.h"

#include <memory>
#include <mutex>

#include "ATen/core/grad_mode.h"
#include "parallel/base/tensor_hooks.h"
#include "parallel/shard/dispatch/local_map.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/variable.h"

namespace meshrun {
namespace {

using torch::autograd::AutogradMeta;
using torch::autograd::variable_list;

// Lives and dies with the leaf. The leaf's spec is asked when a gradient arrives: set_data() may
// have changed it.
class LeafHook : public torch::autograd::FunctionPreHook {
 public:
  explicit LeafHook(const ShardTensorImpl& leaf) : leaf_(leaf) {}

  variable_list operator()(const variable_list& arrived) override {
    variable_list result = arrived;
    // Undefined: zero, as everywhere in autograd.
    if (!result[0].defined()) return result;
    const SpecPtr wanted = gradient_spec(leaf_.spec());
    result[0] = redistribute(promote(result[0], wanted->mesh()), wanted);
    // AccumulateGrad keeps what it gets where nobody else holds the TensorImpl, and later adds to
    // it. It cannot add to expanded memory, and must not to memory that the gradient of another
    // leaf has too: two operands of one local sum get the same. A gradient that is recorded it
    // copies anyway; a node here would stand on some ranks alone.
    if (c10::GradMode::is_enabled()) return result;
    const at::Tensor& local = local_of(result[0]);
    const bool is_dense = local.is_non_overlapping_and_dense();
    const bool is_shared =
        local.use_count() > 1 || (local.has_storage() && local.storage().use_count() > 1);
    if (!is_dense || is_shared) {
      result[0] =
          result[0].clone(is_dense ? at::MemoryFormat::Preserve : at::MemoryFormat::Contiguous);
    }
    return result;
  }

 private:
  const ShardTensorImpl& leaf_;
};

}  // namespace

bool is_leaf_that_requires_grad(const c10::TensorImpl& tensor) {
  const auto* meta = static_cast<const AutogradMeta*>(tensor.autograd_meta());
  return meta != nullptr && meta->requires_grad_;
}

void add_leaf_hook(const ShardTensorImpl& leaf) {
  auto* meta = static_cast<AutogradMeta*>(leaf.autograd_meta());
  detail::keep_hooks(at::Tensor(
      c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<ShardTensorImpl*>(&leaf))));
  const std::lock_guard lock(meta->mutex_);
  meta->hooks_.insert(meta->hooks_.begin(), std::make_unique<LeafHook>(leaf));
}

}  // namespace meshrun
