// Prefetches memory that the processor cannot predict: its own prefetchers stop at each page, and
// do not know that the next access is a write. Any address is allowed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace meshrun {

inline constexpr int64_t kCacheLine = 64;

inline void prefetch_to_read(const std::byte* data, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(data + at);
}

// Another core may have it.
inline void prefetch_to_write(const std::byte* data, int64_t bytes) {
#ifdef __x86_64__
  // Where a processor lacks the instruction, it does nothing.
  for (int64_t at = 0; at < bytes; at += kCacheLine) asm volatile("prefetchw %0" ::"m"(data[at]));
#else
  for (int64_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(data + at, 1);
#endif
}

}  // namespace meshrun
