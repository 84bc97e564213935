#include "parallel/shard/dispatch/promotion.h"

#include <mutex>
#include <unordered_map>

#include "ATen/core/grad_mode.h"
#include "c10/util/Exception.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/shard/redistribute/redistribute.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"

namespace meshrun {
namespace {

thread_local PromotionMode mode_of_thread = PromotionMode::kSilent;

struct Announced {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, c10::weak_intrusive_ptr<c10::TensorImpl>> leaves;
};

Announced& announced() {
  static auto* leaves = new Announced;
  return *leaves;
}

}  // namespace

PromotionMode promotion_mode() { return mode_of_thread; }

PromotionModeGuard::PromotionModeGuard(PromotionMode mode) : before_(mode_of_thread) {
  mode_of_thread = mode;
}
PromotionModeGuard::~PromotionModeGuard() { mode_of_thread = before_; }

void check_promotion(const at::Tensor& plain, const char* operation) {
  if (plain.requires_grad() && c10::GradMode::is_enabled() && !is_announced(plain)) {
    throw ShardTensorError(fmt::format(
        "{} got a plain tensor of [{}] that requires a gradient beside a ShardTensor: make it one "
        "by ShardTensor::from_local(), or announce the leaf by distribute_module()",
        operation, fmt::join(plain.sizes(), ", ")));
  }
  if (plain.dim() == 0 || mode_of_thread == PromotionMode::kSilent) return;
  if (mode_of_thread == PromotionMode::kDisabled) {
    throw ShardTensorError(fmt::format(
        "{} got a plain tensor of [{}] beside a ShardTensor, and PromotionMode is disabled",
        operation, fmt::join(plain.sizes(), ", ")));
  }
  TORCH_WARN(operation, " takes a plain tensor of ", plain.sizes(), " as Replicate");
}

bool is_announced(const at::Tensor& leaf) {
  const std::lock_guard lock(announced().mutex);
  const auto found = announced().leaves.find(leaf.unsafeGetTensorImpl());
  return found != announced().leaves.end() && !found->second.expired();
}

void announce_plain_leaf(const at::Tensor& leaf) {
  TORCH_CHECK_VALUE(
      leaf.defined() && leaf.is_leaf() && leaf.requires_grad() && !is_shard_tensor(leaf),
      "announce_plain_leaf takes a plain leaf that requires a gradient");
  {
    const std::lock_guard lock(announced().mutex);
    const auto [place, is_new] = announced().leaves.insert_or_assign(
        leaf.unsafeGetTensorImpl(),
        c10::weak_intrusive_ptr<c10::TensorImpl>(leaf.getIntrusivePtr()));
    if (!is_new) return;
  }
  leaf.register_hook([](const at::Tensor& gradient) -> at::Tensor {
    if (!is_shard_tensor(gradient)) return gradient;
    const SpecPtr& spec = spec_of(gradient);
    return redistribute_local(local_of(gradient), spec,
                              replicated_spec(spec->mesh(), spec->global_shape()));
  });
}

}  // namespace meshrun
