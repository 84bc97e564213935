// LibTorch's CPU allocator, counting: how often, how much at most at one time, on any thread.
//
//   CountingAllocator allocator;
//   {
//     CountingAllocator::Use counting(allocator);  // from here what is new comes from it
//     ...
//   }
//   allocator.peak_bytes()
//
// What it hands out is filled with 0xff, not a number: a result that nobody wrote is seen.
#pragma once

#include <atomic>
#include <cstdint>

#include "c10/core/Allocator.h"

namespace meshrun::bench {

class CountingAllocator final : public c10::Allocator {
 public:
  class Use {
   public:
    // One at a time; the allocator outlives what was allocated.
    explicit Use(CountingAllocator& allocator);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    c10::Allocator* const before_;
  };

  void reset();
  int64_t allocations() const { return allocations_; }
  // Since reset(), above what there was then.
  int64_t peak_bytes() const { return peak_; }

  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* to, const void* from, size_t bytes) const override;

 private:
  struct Block;
  static void free(void* block);

  std::atomic<int64_t> allocations_{0};
  std::atomic<int64_t> bytes_{0};
  std::atomic<int64_t> peak_{0};
};

}  // namespace meshrun::bench
