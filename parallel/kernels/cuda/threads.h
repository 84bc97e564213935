// How the threads of a launch share what is to be done: all of it, each part once, whatever the
// grid.
#pragma once

#include <algorithm>
#include <cstdint>

#include "parallel/kernels/cuda/indexing.h"

namespace meshrun::cuda {

constexpr int kBlock = 256;
constexpr uint64_t kMostBlocks = (uint64_t{1} << 31) - 1;  // of a grid

// The loop in run_threads takes what a grid cannot.
template <int kLoads>
unsigned blocks_for(uint64_t count) {
  constexpr uint64_t kPerBlock = kBlock * kLoads;
  return static_cast<unsigned>(std::min((count + kPerBlock - 1) / kPerBlock, kMostBlocks));
}

// Thread `thread` of block `block` of `blocks`: has kLoads loads under way before its first store;
// neighbours touch neighbours.
template <int kLoads, typename Index, typename Load, typename Store>
MESHRUN_HOST_DEVICE void run_threads(unsigned block, unsigned blocks, unsigned thread, Index count,
                                     const Load& load, const Store& store) {
  const Index step = static_cast<Index>(blocks) * (kBlock * kLoads);
  for (Index first = static_cast<Index>(block) * (kBlock * kLoads) + thread; first < count;
       first += step) {
    decltype(load(first)) values[kLoads];
    MESHRUN_UNROLL
    for (int i = 0; i < kLoads; ++i) {
      const Index at = first + static_cast<Index>(i * kBlock);
      if (at < count) values[i] = load(at);
    }
    MESHRUN_UNROLL
    for (int i = 0; i < kLoads; ++i) {
      const Index at = first + static_cast<Index>(i * kBlock);
      if (at < count) store(at, values[i]);
    }
  }
}

template <int kLoads, typename Body>
MESHRUN_HOST_DEVICE void run_body(const Body& body, unsigned block, unsigned blocks,
                                  unsigned thread) {
  using Index = typename Body::Index;
  run_threads<kLoads, Index>(
      block, blocks, thread, body.count, [&](Index at) { return body.load(at); },
      [&](Index at, const typename Body::Value& value) { body.store(at, value); });
}

template <int kLoads, typename Body>
MESHRUN_HOST_DEVICE void run_piece(const Body& body, int piece, unsigned block, unsigned blocks,
                                   unsigned thread) {
  using Index = typename Body::Index;
  run_threads<kLoads, Index>(
      block, blocks, thread, body.count(piece), [&](Index at) { return body.load(piece, at); },
      [&](Index at, const typename Body::Value& value) { body.store(piece, at, value); });
}

// The largest of the pieces' numbers of threads.
template <typename Body>
uint64_t most_threads(const Body& body, int number) {
  uint64_t most = 0;
  for (int i = 0; i < number; ++i) most = std::max<uint64_t>(most, body.count(i));
  return most;
}

}  // namespace meshrun::cuda
