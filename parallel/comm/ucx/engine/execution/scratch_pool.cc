#include "parallel/comm/ucx/engine/execution/scratch_pool.h"

#include <algorithm>
#include <utility>

namespace meshrun::ucx {

Scratch ScratchPool::take(int64_t bytes) {
  if (bytes == 0) return {};
  // The smallest that is long enough.
  auto found = free_.end();
  for (auto free = free_.begin(); free != free_.end(); ++free) {
    if (free->capacity < bytes) continue;
    if (found == free_.end() || free->capacity < found->capacity) found = free;
  }
  if (found != free_.end()) {
    Scratch scratch = std::move(*found);
    free_.erase(found);
    free_bytes_ -= scratch.capacity;
    return scratch;
  }
  Scratch scratch;
  scratch.capacity = bytes;
  void* const shared = heap_ != nullptr ? heap_->allocate(static_cast<size_t>(bytes)) : nullptr;
  if (shared != nullptr) {
    scratch.data = {static_cast<std::byte*>(shared), ScratchDelete{heap_}};
  } else {
    scratch.data.reset(static_cast<std::byte*>(
        ::operator new[](static_cast<size_t>(bytes), std::align_val_t{64})));
  }
  return scratch;
}

void ScratchPool::give_back(Scratch scratch) {
  if (scratch.capacity == 0) return;
  free_bytes_ += scratch.capacity;
  free_.push_back(std::move(scratch));
  const auto smaller = [](const Scratch& a, const Scratch& b) { return a.capacity < b.capacity; };
  while (free_bytes_ > kFreeBytes) drop(std::max_element(free_.begin(), free_.end(), smaller));
  if (free_.size() > kFreeBlocks) drop(std::min_element(free_.begin(), free_.end(), smaller));
}

void ScratchPool::drop(std::vector<Scratch>::iterator which) {
  free_bytes_ -= which->capacity;
  const ScratchDelete free = which->data.get_deleter();
  actions_.memory.push_back(std::shared_ptr<void>(
      which->data.release(), [free](void* data) { free(static_cast<std::byte*>(data)); }));
  free_.erase(which);
}

}  // namespace meshrun::ucx
