// Pieces of work for several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace meshrun::client {

struct PieceOfWork {
  uint64_t bytes = 0;
  std::function<void()> run;
};

// Runs all of them, in about their order, by `threads` threads. `progress` is called several times
// a second by the calling thread; it may be empty.
void RunAll(const std::vector<PieceOfWork>& work, int threads,
            const std::function<void(uint64_t done, uint64_t all)>& progress);

}  // namespace meshrun::client
