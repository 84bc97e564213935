#include "client/checkpoint/parallel_reads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "core/mutex.h"

namespace meshrun::client {

void RunAll(const std::vector<PieceOfWork>& work, int threads,
            const std::function<void(uint64_t done, uint64_t all)>& progress) {
  constexpr std::chrono::milliseconds kBetween(200);
  uint64_t all = 0;
  for (const PieceOfWork& piece : work) all += piece.bytes;
  std::atomic<size_t> next = 0;
  std::atomic<uint64_t> done = 0;
  Mutex mutex;
  CondVar ended;
  size_t running = std::min<size_t>(std::max(threads, 1), work.size());
  std::vector<std::thread> readers;
  for (size_t i = 0, count = running; i < count; ++i) {
    readers.emplace_back([&] {
      for (size_t k = next++; k < work.size(); k = next++) {
        work[k].run();
        done += work[k].bytes;
      }
      const MutexLock lock(mutex);
      --running;
      ended.NotifyOne();
    });
  }
  for (bool more = true; more;) {
    {
      const MutexLock lock(mutex);
      if (running > 0) ended.WaitUntil(mutex, std::chrono::steady_clock::now() + kBetween);
      more = running > 0;
    }
    if (more && progress) progress(done, all);
  }
  for (std::thread& reader : readers) reader.join();
}

}  // namespace meshrun::client
