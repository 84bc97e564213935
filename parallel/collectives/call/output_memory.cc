#include "parallel/collectives/call/output_memory.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <list>
#include <memory>
#include <utility>

#include "ATen/Context.h"
#include "ATen/EmptyTensor.h"
#include "ATen/ops/empty.h"
#include "c10/core/Allocator.h"
#include "c10/core/CPUAllocator.h"
#include "c10/core/DeviceGuard.h"
#include "c10/core/impl/TorchDispatchModeTLS.h"
#include "core/mutex.h"
#include "parallel/base/process.h"
#include "parallel/base/shared_heap.h"

namespace meshrun {
namespace {

// Below, malloc's own pools do.
constexpr size_t kLeast = 8 << 10;
// Above, pages that are larger and the kernel's copying win.
constexpr size_t kMostShared = size_t{64} << 20;
constexpr size_t kGranule = SharedHeap::kGranule;
constexpr size_t kDefaultCacheMiB = 256;

struct Block {
  SharedHeap* heap = nullptr;  // absent: `memory`
  void* shared = nullptr;
  c10::DataPtr memory;
  size_t bytes = 0;

  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    if (heap != nullptr) heap->free(shared);
  }
  void* data() const { return heap != nullptr ? shared : memory.get(); }
  // The parent's, in a process that was forked.
  bool is_inherited() const { return heap != nullptr && heap->is_inherited(); }
};

std::unique_ptr<Block> new_block(size_t bytes) {
  auto block = std::make_unique<Block>();
  block->bytes = bytes;
  SharedHeap* const heap = bytes <= kMostShared ? SharedHeap::of_process() : nullptr;
  if (heap != nullptr) block->shared = heap->allocate(bytes);
  if (block->shared != nullptr) {
    block->heap = heap;
  } else {
    block->memory = c10::GetCPUAllocator()->allocate(bytes);
  }
  return block;
}

class OutputAllocator final : public c10::Allocator {
 public:
  // Never destroyed: tensors may outlive main().
  static OutputAllocator& get() {
    OutputAllocator* const allocator = made;
    return allocator != nullptr ? *allocator : make();
  }

  // Around fork(): a child never inherits the locks held.
  static void lock_for_fork() MESHRUN_TSA(no_thread_safety_analysis) {
    making.Lock();
    if (OutputAllocator* const allocator = made) allocator->mu_.Lock();
  }
  static void unlock_after_fork() MESHRUN_TSA(no_thread_safety_analysis) {
    if (OutputAllocator* const allocator = made) allocator->mu_.Unlock();
    making.Unlock();
  }

  c10::DataPtr allocate(size_t bytes) override {
    const size_t rounded = (bytes + kGranule - 1) / kGranule * kGranule;
    std::unique_ptr<Block> block = take(rounded);
    if (block == nullptr) block = new_block(rounded);
    {
      MutexLock lock(mu_);
      used_bytes_ += rounded;
      peak_bytes_ = std::max(peak_bytes_, used_bytes_);
    }
    void* const data = block->data();
    return {data, block.release(), &give_back, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  void release() {
    std::list<std::unique_ptr<Block>> dropped;  // freed without the lock
    MutexLock lock(mu_);
    drop(0, dropped);
    peak_bytes_ = used_bytes_;
  }
  OutputMemory memory() {
    MutexLock lock(mu_);
    return {used_bytes_, peak_bytes_};
  }

 private:
  using Blocks = std::list<std::unique_ptr<Block>>;

  static OutputAllocator& make() {
    MutexLock lock(making);
    if (made == nullptr) made = new OutputAllocator;
    return *made;
  }

  static void give_back(void* context) {
    OutputAllocator& allocator = get();
    std::unique_ptr<Block> block(static_cast<Block*>(context));
    if (block->is_inherited()) return;
    Blocks dropped;
    MutexLock lock(allocator.mu_);
    allocator.used_bytes_ -= block->bytes;
    allocator.kept_bytes_ += block->bytes;
    allocator.unused_.push_front(std::move(block));
    allocator.drop(allocator.limit_, dropped);
  }

  // The one that was used last has its pages in the caches.
  std::unique_ptr<Block> take(size_t bytes) {
    MutexLock lock(mu_);
    for (auto block = unused_.begin(); block != unused_.end(); ++block) {
      if ((*block)->bytes != bytes || (*block)->is_inherited()) continue;
      std::unique_ptr<Block> found = std::move(*block);
      unused_.erase(block);
      kept_bytes_ -= bytes;
      return found;
    }
    return nullptr;
  }

  void drop(size_t limit, Blocks& dropped) MESHRUN_REQUIRES(mu_) {
    while (kept_bytes_ > limit) {
      kept_bytes_ -= unused_.back()->bytes;
      dropped.push_back(std::move(unused_.back()));
      unused_.pop_back();
    }
  }

  static Mutex making;
  static std::atomic<OutputAllocator*> made;

  const size_t limit_ = mib_of_environment("MESHRUN_OUTPUT_CACHE_MIB", kDefaultCacheMiB);
  Mutex mu_;
  // The last used first.
  Blocks unused_ MESHRUN_GUARDED_BY(mu_);
  size_t kept_bytes_ MESHRUN_GUARDED_BY(mu_) = 0;
  size_t used_bytes_ MESHRUN_GUARDED_BY(mu_) = 0;
  size_t peak_bytes_ MESHRUN_GUARDED_BY(mu_) = 0;
};

constinit Mutex OutputAllocator::making;
constinit std::atomic<OutputAllocator*> OutputAllocator::made{nullptr};

const bool is_ready_for_fork [[maybe_unused]] =
    pthread_atfork(&OutputAllocator::lock_for_fork, &OutputAllocator::unlock_after_fork,
                   &OutputAllocator::unlock_after_fork) == 0;

}  // namespace

at::Tensor empty_output(at::IntArrayRef shape, const at::TensorOptions& options) {
  // What traces or counts operators has the outputs too.
  if (c10::impl::dispatch_mode_enabled()) return at::empty(shape, options);
  // Without the dispatcher, which would take as long as a small transfer.
  const auto made = [&](c10::Allocator* allocator, c10::DispatchKey key) {
    return at::Tensor(at::detail::empty_generic(shape, allocator, c10::DispatchKeySet(key),
                                                c10::typeMetaToScalarType(options.dtype()),
                                                at::MemoryFormat::Contiguous));
  };
  if (options.device().is_cuda()) {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    static c10::Allocator* const caching = c10::GetAllocator(c10::DeviceType::CUDA);
    const c10::DeviceGuard guard(options.device());
    return made(caching, c10::DispatchKey::CUDA);
  }
  if (!options.device().is_cpu()) return at::empty(shape, options);
  size_t bytes = options.dtype().itemsize();
  for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  return made(bytes < kLeast ? c10::GetCPUAllocator() : &OutputAllocator::get(),
              c10::DispatchKey::CPU);
}

void release_output_memory() { OutputAllocator::get().release(); }

OutputMemory output_memory() { return OutputAllocator::get().memory(); }

}  // namespace meshrun
