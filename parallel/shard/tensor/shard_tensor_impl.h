// The TensorImpl of a sharded tensor: global sizes and the real device outside, local tensor and
// spec inside.
//
// Its dispatch keys have the backend's bit without any functionality of a backend, so an operator
// that no handler unwrapped ends in the dispatcher's error and never reads memory. It has:
//
//   DeferredInit     function handlers, above autograd; falls through elsewhere
//   Autograd, ADInplaceOrView   LibTorch's own, on the global shape
//   Fake             operator handlers and the fallback, below autograd
//
// LibTorch itself uses neither DeferredInit nor Fake. Internal to parallel/shard. Threads: as
// tensors.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "c10/core/TensorImpl.h"
#include "parallel/base/sharded_key.h"
#include "parallel/shard/tensor/shard_tensor_spec.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace meshrun {

inline constexpr c10::DispatchKey kOperatorKey = kShardedKey;
inline constexpr c10::DispatchKey kFunctionKey = c10::DispatchKey::DeferredInit;

class ShardTensorImpl : public c10::TensorImpl {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // `local`: of the spec's local shape, without autograd history. `pending`: what still writes it.
  ShardTensorImpl(at::Tensor local, SpecPtr spec, WorkPtr pending = {});

  // Waits for what still writes it.
  const at::Tensor& local() const {
    if (pending_) wait();
    return local_;
  }
  const SpecPtr& spec() const { return spec_; }
  bool is_pending() const { return pending_ && !pending_->isCompleted(); }
  // In place of what it had; the global shape stays.
  void replace(at::Tensor local, SpecPtr spec);

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;

 protected:
  const char* tensorimpl_type_name() const override { return "ShardTensorImpl"; }

 private:
  void wait() const;
  void mirror_strides();

  at::Tensor local_;
  SpecPtr spec_;
  mutable WorkPtr pending_;
};

inline bool is_shard_tensor(const at::Tensor& tensor) { return is_sharded(tensor); }

// Null where it is not one.
inline ShardTensorImpl* shard_impl(const at::Tensor& tensor) {
  return is_shard_tensor(tensor) ? static_cast<ShardTensorImpl*>(tensor.unsafeGetTensorImpl())
                                 : nullptr;
}

// The two parts of a tensor that is one.
const at::Tensor& local_of(const at::Tensor& tensor);
const SpecPtr& spec_of(const at::Tensor& tensor);

// The local memory of a sharded tensor under a TensorImpl of its own, without history: what is done
// to the alias itself (requires_grad, resize_, a hook) stays there. Both count their writes
// together.
at::Tensor alias_of(const at::Tensor& tensor);

// A sharded tensor without history. `local` has the spec's local shape.
at::Tensor wrap(at::Tensor local, SpecPtr spec, ShardTensorImpl::WorkPtr pending = {});

// Whether any was made in this process.
bool any_shard_tensor_was_made();

}  // namespace meshrun
