// What a plain tensor means among sharded ones: the same values on every rank, Replicate. A tensor
// without dimensions always counts so; PromotionMode decides on the others.
//
// Below autograd, a plain leaf that requires a gradient would get a sharded one. It is repaired
// where the leaf was announced, else it is an error, unless announce_plain_leaves() says that a
// leaf is announced where it first meets a sharded tensor. Function handlers (above autograd) give
// any plain tensor a plain gradient. handler_entry.h and the kernels of many operators check this.
// A plain tensor that is written is another matter: plain_targets.h.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace meshrun {

enum class PromotionMode : uint8_t { kDisabled, kWarn, kSilent };

// Mode of this thread; kSilent at first.
PromotionMode promotion_mode();
void set_promotion_mode(PromotionMode mode);

class PromotionModeGuard {
 public:
  explicit PromotionModeGuard(PromotionMode mode);
  ~PromotionModeGuard();
  PromotionModeGuard(const PromotionModeGuard&) = delete;
  PromotionModeGuard& operator=(const PromotionModeGuard&) = delete;

 private:
  PromotionMode before_;
};

// Raises ShardTensorError where `plain` must not meet a sharded tensor in `operation`.
void check_promotion(const at::Tensor& plain, const char* operation);
// The part of it that depends on PromotionMode: warns, or raises ShardTensorError.
void check_mode(const at::Tensor& plain, const char* operation);
// What to do where an operator cannot write a ShardTensor into a plain tensor, and the
// ShardTensorError that says so; `why` follows.
inline constexpr const char* kPlainTargetRemedy =
    "make the tensor that is written by new_zeros() or zeros_like() of a ShardTensor";
[[noreturn]] void refuse_plain_target(const char* operation, const char* why = "");
// check_mode() where values of sharded tensors are written into `target`, a plain tensor, which
// stays plain: plain_targets.h. Warns once for each operation. Autograd's engine, which adds up
// gradients in place, is free to.
void check_plain_target(const at::Tensor& target, const char* operation);

// From now on the gradients of this plain leaf are made plain, and summed over what is Partial,
// before they are accumulated.
void announce_plain_leaf(const at::Tensor& leaf);
bool is_announced(const at::Tensor& leaf);
// On all threads of this process, from now on: Python, whose modules keep plain parameters.
void announce_plain_leaves();

}  // namespace meshrun
