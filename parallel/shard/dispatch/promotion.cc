#include "parallel/shard/dispatch/promotion.h"

#include <algorithm>
#include <atomic>

#include "ATen/core/grad_mode.h"
#include "c10/util/Exception.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/tensor_hooks.h"
#include "parallel/shard/dispatch/first_time.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"
#include "torch/csrc/autograd/graph_task.h"
#include "torch/csrc/autograd/variable.h"

namespace meshrun {
namespace {

thread_local PromotionMode mode_of_thread = PromotionMode::kSilent;
std::atomic<bool> announces_plain_leaves{false};

// Makes the gradient of a plain tensor plain: a hook that lives and dies with the tensor.
struct MakesGradientPlain {
  at::TensorBase operator()(const at::TensorBase& arrived) const {
    const at::Tensor gradient(arrived);
    if (!gradient.defined() || !is_shard_tensor(gradient)) return gradient;
    const SpecPtr& spec = spec_of(gradient);
    return to_local(redistribute(gradient, replicated_spec(spec->mesh(), spec->global_shape())));
  }
};

void make_gradient_plain(const at::TensorBase& plain) {
  detail::keep_hooks(plain);
  plain.register_hook(MakesGradientPlain());
}

}  // namespace

PromotionMode promotion_mode() { return mode_of_thread; }
void set_promotion_mode(PromotionMode mode) { mode_of_thread = mode; }

PromotionModeGuard::PromotionModeGuard(PromotionMode mode) : before_(mode_of_thread) {
  mode_of_thread = mode;
}
PromotionModeGuard::~PromotionModeGuard() { mode_of_thread = before_; }

void check_promotion(const at::Tensor& plain, const char* operation) {
  if (plain.requires_grad() && c10::GradMode::is_enabled() && !is_announced(plain)) {
    if (plain.is_leaf() && !announces_plain_leaves.load(std::memory_order_relaxed)) {
      throw ShardTensorError(fmt::format(
          "{} got a plain leaf of [{}] that requires a gradient beside a ShardTensor: make it one "
          "by ShardTensor::from_local(), or announce the leaf by distribute_module()",
          operation, fmt::join(plain.sizes(), ", ")));
    }
    make_gradient_plain(plain);
  }
  check_mode(plain, operation);
}

void check_mode(const at::Tensor& plain, const char* operation) {
  if (plain.dim() == 0 || mode_of_thread == PromotionMode::kSilent) return;
  if (mode_of_thread == PromotionMode::kDisabled) {
    throw ShardTensorError(fmt::format(
        "{} got a plain tensor of [{}] beside a ShardTensor, and PromotionMode is disabled",
        operation, fmt::join(plain.sizes(), ", ")));
  }
  TORCH_WARN(operation, " takes a plain tensor of ", plain.sizes(), " as Replicate");
}

void refuse_plain_target(const char* operation, const char* why) {
  throw ShardTensorError(fmt::format("{} cannot write a ShardTensor into a plain tensor: {}{}",
                                     operation, kPlainTargetRemedy, why));
}

void check_plain_target(const at::Tensor& target, const char* operation) {
  if (target.dim() == 0 || mode_of_thread == PromotionMode::kSilent) return;
  if (torch::autograd::get_current_graph_task_id() >= 0) return;
  if (mode_of_thread == PromotionMode::kDisabled) {
    refuse_plain_target(operation, " (PromotionMode is disabled)");
  }
  static auto* first_time = new FirstTime;
  if (!(*first_time)(operation)) return;
  TORCH_WARN(operation, " writes a ShardTensor into a plain tensor of ", target.sizes(),
             ": its values are gathered on every rank; ", kPlainTargetRemedy);
}

bool is_announced(const at::Tensor& leaf) {
  // A view has a new history, and no hooks, after its base was written. LibTorch finds that out
  // where the history is asked for.
  [[maybe_unused]] const auto& history = leaf.grad_fn();
  const auto& hooks = torch::autograd::impl::get_autograd_meta(leaf)->cpp_hooks_list_;
  return hooks && std::any_of(hooks->begin(), hooks->end(), [](const auto& hook) {
           return hook.template target<MakesGradientPlain>() != nullptr;
         });
}

void announce_plain_leaves() { announces_plain_leaves = true; }

void announce_plain_leaf(const at::Tensor& leaf) {
  TORCH_CHECK_VALUE(
      leaf.defined() && leaf.is_leaf() && leaf.requires_grad() && !is_shard_tensor(leaf),
      "announce_plain_leaf takes a plain leaf that requires a gradient");
  if (!is_announced(leaf)) make_gradient_plain(leaf);
}

}  // namespace meshrun
