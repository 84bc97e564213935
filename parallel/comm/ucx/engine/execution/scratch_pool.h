// Memory that schedules stage in. What an operation returns is kept for the next ones: best fit, up
// to a bound. It comes from the shared heap where that has room, so that peers write contributions
// straight into it, else from the process.
//
// A block that is taken is nobody else's until it is returned. Threads: under the engine's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "parallel/base/shared_heap.h"
#include "parallel/comm/ucx/engine/execution/actions.h"

namespace meshrun::ucx {

struct ScratchDelete {
  SharedHeap* heap = nullptr;  // absent: the process's own memory
  void operator()(std::byte* data) const {
    heap != nullptr ? heap->free(data) : ::operator delete[](data, std::align_val_t{64});
  }
};

// Aligned to cache lines.
struct Scratch {
  std::unique_ptr<std::byte[], ScratchDelete> data;
  int64_t capacity = 0;
};

class ScratchPool {
 public:
  // Most blocks and bytes that are kept while no operation uses them.
  static constexpr size_t kFreeBlocks = 4;
  static constexpr int64_t kFreeBytes = 32 << 20;

  // `heap` and `actions` outlive it; null: no heap.
  ScratchPool(SharedHeap* heap, Actions& actions) : heap_(heap), actions_(actions) {}

  // At least so many bytes; none for 0.
  Scratch take(int64_t bytes);
  // Nobody writes there any more. What exceeds the bound goes to `actions`: giving pages
  // back takes as long as a large transfer.
  void give_back(Scratch scratch);

 private:
  void drop(std::vector<Scratch>::iterator which);

  SharedHeap* const heap_;
  Actions& actions_;
  std::vector<Scratch> free_;
  int64_t free_bytes_ = 0;
};

}  // namespace meshrun::ucx
