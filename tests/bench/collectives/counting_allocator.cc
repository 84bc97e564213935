#include "tests/bench/collectives/counting_allocator.h"

#include <algorithm>
#include <cstring>

#include "c10/core/CPUAllocator.h"
#include "c10/core/impl/alloc_cpu.h"

namespace meshrun::bench {

struct CountingAllocator::Block {
  CountingAllocator* allocator;
  void* data;
  int64_t bytes;
};

CountingAllocator::Use::Use(CountingAllocator& allocator) : before_(c10::GetCPUAllocator()) {
  allocator.reset();
  c10::SetCPUAllocator(&allocator);
}
CountingAllocator::Use::~Use() { c10::SetCPUAllocator(before_); }

void CountingAllocator::reset() { allocations_ = bytes_ = peak_ = 0; }

c10::DataPtr CountingAllocator::allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, c10::kCPU};
  void* const data = c10::alloc_cpu(bytes);
  std::memset(data, 0xff, bytes);
  ++allocations_;
  const int64_t now = bytes_ += static_cast<int64_t>(bytes);
  int64_t peak = peak_;
  while (peak < now && !peak_.compare_exchange_weak(peak, now)) {
  }
  return {data, new Block{this, data, static_cast<int64_t>(bytes)}, &CountingAllocator::free,
          c10::kCPU};
}

void CountingAllocator::copy_data(void* to, const void* from, size_t bytes) const {
  std::memcpy(to, from, bytes);
}

void CountingAllocator::free(void* pointer) {
  const auto* const block = static_cast<Block*>(pointer);
  block->allocator->bytes_ -= block->bytes;
  c10::free_cpu(block->data);
  delete block;
}

}  // namespace meshrun::bench
