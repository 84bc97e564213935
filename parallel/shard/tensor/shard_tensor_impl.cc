#include "parallel/shard/tensor/shard_tensor_impl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "ATen/ops/empty_strided.h"
#include "c10/core/AutogradState.h"
#include "c10/core/InferenceMode.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "c10/util/DimVector.h"
#include "c10/util/safe_numerics.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/traced_calls.h"
#include "parallel/shard/tensor/leaf_gradient.h"

namespace meshrun {
namespace {

std::atomic<bool> any_made{false};

// The backend's bit comes with the autograd keys of that backend alone.
c10::DispatchKeySet keys_of(const at::Tensor& local) {
  const c10::DispatchKeySet backend =
      local.key_set() & c10::DispatchKeySet(c10::DispatchKeySet::RAW, c10::full_backend_mask);
  const c10::DispatchKeySet keys =
      backend | c10::DispatchKeySet(kOperatorKey) | c10::DispatchKeySet(kFunctionKey);
  return is_traced(local) ? keys.add(kTracedKey) : keys;
}

// What still writes a local tensor, as the tensor and its copies share it: the first of their
// readers waits, the others wait for that reader, and the work's memory is then freed. Readers
// change nothing of the tensor, so any number of threads may be the first. On a GPU the work is
// ordered before the stream of the first reader. An error of the work is raised in every reader.
class PendingWrite : public c10d::Work {
 public:
  using WorkPtr = ShardTensorImpl::WorkPtr;

  // Null for null; one of these as it is.
  static WorkPtr of(WorkPtr work) {
    if (!work || dynamic_cast<PendingWrite*>(work.get()) != nullptr) return work;
    return c10::make_intrusive<PendingWrite>(std::move(work));
  }

  explicit PendingWrite(WorkPtr work) : work_(std::move(work)) {}

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    if (is_done_.load(std::memory_order_acquire)) return true;
    const std::lock_guard lock(mutex_);
    if (!work_) return true;
    work_->wait(timeout);
    work_.reset();
    is_done_.store(true, std::memory_order_release);
    return true;
  }

  bool isCompleted() override {
    if (is_done_.load(std::memory_order_acquire)) return true;
    const std::lock_guard lock(mutex_);
    return !work_ || work_->isCompleted();
  }

 private:
  std::atomic<bool> is_done_{false};
  std::mutex mutex_;
  WorkPtr work_;  // null once done
};

// What is seen of a normal tensor's memory in inference mode stays a normal tensor, as LibTorch has
// it: views count their writes with it. What is computed there is an inference tensor.
class AsNormalAs {
 public:
  explicit AsNormalAs(const at::Tensor& local) {
    if (c10::InferenceMode::is_enabled() && !local.is_inference()) normal_.emplace(false);
  }

 private:
  std::optional<c10::InferenceMode> normal_;
};

bool is_expanded(const at::Tensor& tensor) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) return true;
  }
  return false;
}

// Strides of dimensions of one element mean nothing.
bool lies_so(const at::Tensor& tensor, at::IntArrayRef strides) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1 && tensor.stride(dim) != strides[static_cast<size_t>(dim)]) {
      return tensor.numel() == 0;
    }
  }
  return true;
}

}  // namespace

ShardTensorImpl::ShardTensorImpl(at::Tensor local, SpecPtr spec, WorkPtr pending,
                                 at::OptionalIntArrayRef strides)
    : TensorImpl(keys_of(local), local.dtype(), local.device()),
      local_(std::move(local)),
      spec_(std::move(spec)),
      pending_(PendingWrite::of(std::move(pending))) {
  TORCH_INTERNAL_ASSERT(local_.sizes() == at::IntArrayRef(spec_->local_shape()),
                        fmt::format("a local tensor of [{}] for {}",
                                    fmt::join(local_.sizes(), ", "), spec_->to_string()));
  set_storage_access_should_throw();
  set_strides(strides);
  if (!any_made.load(std::memory_order_relaxed)) any_made = true;
  // Views are replayed: as_strided would take global strides for local memory.
  if (!c10::AutogradState::get_tls_state().get_view_replay_enabled()) {
    c10::AutogradState::get_tls_state().set_view_replay_enabled(true);
  }
}

void ShardTensorImpl::set_strides(at::OptionalIntArrayRef given) {
  const at::IntArrayRef global = spec_->global_shape();
  if (given) {
    set_sizes_and_strides(global, *given);
    return;
  }
  // What set_sizes_contiguous() would work out, which costs more than all else here. Tensors of
  // four and five dimensions may lie as channels-last ones do too.
  const size_t ndim = global.size();
  if (ndim == 4 || ndim == 5 || !allow_tensor_metadata_change()) {
    set_sizes_contiguous(global);
    return;
  }
  sizes_and_strides_.resize(ndim);
  int64_t* const sizes = sizes_and_strides_.sizes_data();
  int64_t* const strides = sizes_and_strides_.strides_data();
  int64_t numel = 1;
  int64_t stride = 1;
  bool overflows = false;
  for (size_t dim = ndim; dim-- > 0;) {
    const int64_t extent = global[dim];
    sizes[dim] = extent;
    strides[dim] = stride;
    numel *= extent;
    overflows |= c10::mul_overflows(stride, std::max<int64_t>(extent, 1), &stride);
  }
  if (overflows) {
    set_sizes_contiguous(global);
    return;
  }
  numel_ = numel;
  is_contiguous_ = true;
  is_non_overlapping_and_dense_ = true;
  is_channels_last_ = false;
  is_channels_last_contiguous_ = false;
  is_channels_last_3d_ = false;
  is_channels_last_3d_contiguous_ = false;
}

// Keeps it: another thread may be reading it.
void ShardTensorImpl::wait() const { pending_->wait(); }

void ShardTensorImpl::hook_leaf() const {
  if (!is_leaf_that_requires_grad(*this)) return;
  // A thread that comes second waits, so that it cannot go backward without the hook.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (has_leaf_hook_) return;
  add_leaf_hook(*this);
  has_leaf_hook_ = true;
}

void ShardTensorImpl::replace(at::Tensor local, SpecPtr spec) {
  local_ = local.contiguous();
  spec_ = std::move(spec);
  pending_.reset();
  set_strides({});
}

void ShardTensorImpl::replace_by_view(const ShardTensorImpl& view) {
  const c10::DimVector strides(view.strides());
  local_ = view.local_;
  spec_ = view.spec_;
  pending_ = view.pending_;
  set_strides(strides);
}

c10::intrusive_ptr<c10::TensorImpl> ShardTensorImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter, bool allow_tensor_metadata_change) const {
  const AsNormalAs normal(local_);
  auto copy = c10::make_intrusive<ShardTensorImpl>(local_, spec_, pending_);
  copy_tensor_metadata(this, copy.get(), version_counter, allow_tensor_metadata_change);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> ShardTensorImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const {
  const AsNormalAs normal(local_);
  auto copy = c10::make_intrusive<ShardTensorImpl>(local_, spec_, pending_);
  copy_tensor_metadata(this, copy.get(), std::move(version_counter), allow_tensor_metadata_change);
  return copy;
}

void ShardTensorImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
  TORCH_CHECK_TYPE(impl->key_set().has(kShardedKey),
                   "a plain tensor cannot become the data of a ShardTensor");
  const auto& other = static_cast<const ShardTensorImpl&>(*impl);
  copy_tensor_metadata(&other, this, version_counter(), allow_tensor_metadata_change());
  local_ = other.local_;
  spec_ = other.spec_;
  pending_ = other.pending_;
}

const at::Tensor& local_of(const at::Tensor& tensor) {
  const ShardTensorImpl* impl = shard_impl(tensor);
  if (impl == nullptr) throw ShardTensorError("the tensor is not a ShardTensor");
  return impl->local();
}

const SpecPtr& spec_of(const at::Tensor& tensor) {
  const ShardTensorImpl* impl = shard_impl(tensor);
  if (impl == nullptr) throw ShardTensorError("the tensor is not a ShardTensor");
  return impl->spec();
}

at::Tensor alias_of(const at::Tensor& tensor) {
  const at::Tensor& local = local_of(tensor);
  constexpr bool kMayChange = true;
  return at::Tensor(local.unsafeGetTensorImpl()->shallow_copy_and_detach(
      tensor.unsafeGetTensorImpl()->version_counter(), kMayChange));
}

void count_writes_with(const at::Tensor& made, const at::Tensor& other) {
  c10::TensorImpl* impl = made.unsafeGetTensorImpl();
  if (impl->is_inference()) return;
  impl->set_version_counter(other.unsafeGetTensorImpl()->version_counter());
}

c10::DimVector dense_strides(at::IntArrayRef sizes, at::IntArrayRef strides) {
  c10::DimVector order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return strides[static_cast<size_t>(a)] > strides[static_cast<size_t>(b)];
  });
  c10::DimVector dense(sizes.size());
  int64_t stride = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    dense[static_cast<size_t>(*dim)] = stride;
    stride *= std::max<int64_t>(sizes[static_cast<size_t>(*dim)], 1);
  }
  return dense;
}

at::Tensor wrap(at::Tensor local, SpecPtr spec, ShardTensorImpl::WorkPtr pending) {
  if (!local.is_contiguous() && !is_expanded(local)) {
    if (pending) pending->wait();
    pending.reset();
    local = local.contiguous();
  }
  const AsNormalAs normal(local);
  return at::detail::make_tensor<ShardTensorImpl>(std::move(local), std::move(spec),
                                                  std::move(pending));
}

at::Tensor wrap_in_order(at::Tensor local, SpecPtr spec, at::IntArrayRef strides) {
  if (const c10::DimVector own = dense_strides(local.sizes(), strides); !lies_so(local, own)) {
    local = at::empty_strided(local.sizes(), own, local.options()).copy_(local);
  }
  return wrap_view(std::move(local), std::move(spec), strides);
}

at::Tensor wrap_like(at::Tensor local, SpecPtr spec, const at::Tensor& like,
                     at::MemoryFormat format) {
  const at::IntArrayRef sizes = spec->global_shape();
  if (format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d) {
    const auto strides = format == at::MemoryFormat::ChannelsLast
                             ? c10::get_channels_last_strides_2d(sizes)
                             : c10::get_channels_last_strides_3d(sizes);
    return wrap_in_order(std::move(local), std::move(spec), strides);
  }
  if (format == at::MemoryFormat::Contiguous) return wrap(std::move(local), std::move(spec));
  const bool has_order = like.defined() && !like.is_contiguous() &&
                         like.is_non_overlapping_and_dense() && like.sizes() == sizes;
  return has_order ? wrap_in_order(std::move(local), std::move(spec), like.strides())
                   : wrap(std::move(local), std::move(spec));
}

at::Tensor wrap_view(at::Tensor local, SpecPtr spec, at::IntArrayRef strides) {
  const AsNormalAs normal(local);
  return at::detail::make_tensor<ShardTensorImpl>(std::move(local), std::move(spec),
                                                  ShardTensorImpl::WorkPtr(), strides);
}

bool any_shard_tensor_was_made() { return any_made; }

}  // namespace meshrun
