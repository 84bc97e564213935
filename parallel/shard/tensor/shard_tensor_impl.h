// The TensorImpl of a sharded tensor: global sizes and the real device outside, local tensor and
// spec inside.
//
// Its dispatch keys have the backend's bit without any functionality of a backend, so an operator
// that no handler unwrapped ends in the dispatcher's error and never reads memory. It has:
//
//   DeferredInit     what tells that a tensor is sharded; function handlers, above autograd, and
//                    writes into plain tensors (dispatch/plain_targets.h); falls through elsewhere
//   Autograd, ADInplaceOrView   LibTorch's own, on the global shape
//   Fake             operator handlers and the fallback, below autograd
//
// LibTorch gives no tensor DeferredInit. From 2.15 on it gives its own fake tensors Fake, and takes
// tensors that have the key for such ones (docs/decisions/0021-dispatch-keys-of-shardtensor.md).
// Internal to parallel/shard. Threads: as
// tensors.
//
// Its global strides never come from local ones. LibTorch branches by strides (AccumulateGrad, the
// gradient of mm, view), local strides differ between ranks (a piece of one row looks contiguous in
// any order), and a rank in another branch runs other collectives. So a tensor is contiguous, or
// dense in an order that is known from operands, or a view, with the strides that LibTorch gives
// the view of such a tensor. The local memory lies in the same order; an expanded one may claim to
// be contiguous.
#pragma once

#include <atomic>
#include <cstdint>

#include "ATen/core/Tensor.h"
#include "c10/core/MemoryFormat.h"
#include "c10/core/TensorImpl.h"
#include "c10/util/ArrayRef.h"
#include "c10/util/DimVector.h"
#include "parallel/base/sharded_key.h"
#include "parallel/shard/tensor/shard_tensor_spec.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace meshrun {

inline constexpr c10::DispatchKey kOperatorKey = c10::DispatchKey::Fake;
inline constexpr c10::DispatchKey kFunctionKey = kShardedKey;
// A tensor whose local one is traced has it too (dispatch/traced_operators.cc). LibTorch's own
// tests alone use it.
inline constexpr c10::DispatchKey kTracedKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

class ShardTensorImpl : public c10::TensorImpl {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // `local`: of the spec's local shape, without autograd history. `pending`: what still writes it.
  // `strides`: the global ones; contiguous where absent.
  ShardTensorImpl(at::Tensor local, SpecPtr spec, WorkPtr pending = {},
                  at::OptionalIntArrayRef strides = {});

  // Waits for what still writes it. What computes with a leaf comes here first, so this is where
  // the leaf gets the hook that leaf_gradient.h tells of, however it became one.
  const at::Tensor& local() const {
    if (pending_) wait();
    if (autograd_meta() != nullptr && !has_leaf_hook_.load(std::memory_order_acquire)) hook_leaf();
    return local_;
  }
  const SpecPtr& spec() const { return spec_; }
  bool is_pending() const { return pending_ && !pending_->isCompleted(); }
  // In place of what it had; the global shape stays. The memory is made contiguous.
  void replace(at::Tensor local, SpecPtr spec);
  // Becomes this view of itself.
  void replace_by_view(const ShardTensorImpl& view);

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;

 protected:
  // "Cannot access storage of ...": what torch::save() raises. data_ptr(), accessors and LibTorch's
  // own printing ask for the address instead, and LibTorch's error for that has a text of its own.
  const char* tensorimpl_type_name() const override {
    return "a ShardTensor, whose parts lie on several ranks: full_tensor() gives the whole tensor, "
           "to_local() this rank's part";
  }

 private:
  void wait() const;
  void hook_leaf() const;
  void set_strides(at::OptionalIntArrayRef strides);

  at::Tensor local_;
  SpecPtr spec_;
  mutable WorkPtr pending_;
  mutable std::atomic<bool> has_leaf_hook_{false};
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

// From now on `made`, a sharded tensor that nobody else has yet, counts writes together with
// `other`, whose memory it may have: autograd finds what it saved of either where the other was
// written. An inference tensor counts none.
void count_writes_with(const at::Tensor& made, const at::Tensor& other);

// A sharded tensor without history, contiguous. `local` has the spec's local shape; it is copied
// where its memory lies in another order.
at::Tensor wrap(at::Tensor local, SpecPtr spec, ShardTensorImpl::WorkPtr pending = {});
// Strides of memory without gaps of these sizes, in the order of `strides`.
c10::DimVector dense_strides(at::IntArrayRef sizes, at::IntArrayRef strides);
// The same as wrap(), in the order of these global strides, which are dense.
at::Tensor wrap_in_order(at::Tensor local, SpecPtr spec, at::IntArrayRef strides);
// The same in the order of `format`. To preserve it is to take that of `like`, where `like` is
// dense and of the same shape: what LibTorch does in its operators on elements.
at::Tensor wrap_like(at::Tensor local, SpecPtr spec, const at::Tensor& like,
                     at::MemoryFormat format = at::MemoryFormat::Preserve);
// A view of a sharded tensor, which shares `local`'s memory. `strides`: the global ones that the
// view has in LibTorch.
at::Tensor wrap_view(at::Tensor local, SpecPtr spec, at::IntArrayRef strides);

// Whether any was made in this process.
bool any_shard_tensor_was_made();

}  // namespace meshrun
