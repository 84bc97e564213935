#include "parallel/collectives/call/output_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace meshrun {
namespace {

at::Tensor made(int64_t bytes) { return empty_output({bytes}, at::TensorOptions(at::kByte)); }

// What a forked child does with its parent's results and with its own; 0: all is right.
int child_allocates() {
  // A lock that the child inherited held would never be free.
  alarm(30);
  const at::Tensor first = made(1 << 20);
  if (first.data_ptr() == nullptr) return 1;
  static_cast<unsigned char*>(first.data_ptr())[0] = 1;
  // From the other allocator, and one that is used again.
  { const at::Tensor large = made(int64_t{65} << 20); }
  { const at::Tensor again = made(1 << 20); }
  release_output_memory();
  return output_memory().used_bytes >= size_t{1} << 20 ? 0 : 2;
}

int status_of_fork() {
  const pid_t child = fork();
  if (child == 0) _exit(child_allocates());
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(OutputMemoryTest, AThreadForksWhileAnotherAllocates) {
  constexpr int kForks = 100;
  std::atomic<bool> is_over{false};
  std::atomic<int64_t> rounds{0};
  std::thread other([&] {
    for (; !is_over; ++rounds) {
      // Blocks that are new and that are used again, from the heap and from c10, and freed ones.
      const at::Tensor kept = made(64 << 10);
      for (const int64_t bytes : {16 << 10, 64 << 10, 1 << 20}) made(bytes);
      if (rounds % 16 == 0) release_output_memory();
    }
  });
  while (rounds == 0) std::this_thread::yield();
  for (int i = 0; i < kForks && !HasFailure(); ++i) {
    const int64_t before = rounds;
    EXPECT_EQ(status_of_fork(), 0) << "fork " << i;
    // The other thread goes on, too.
    while (rounds == before) std::this_thread::yield();
  }
  is_over = true;
  other.join();
}

TEST(OutputMemoryTest, AForkedChildLeavesItsParentsResultsAlone) {
  const at::Tensor kept = made(1 << 20);
  auto* const bytes = static_cast<unsigned char*>(kept.data_ptr());
  std::fill_n(bytes, 1 << 20, static_cast<unsigned char>(7));
  { const at::Tensor unused = made(1 << 20); }
  const pid_t child = fork();
  if (child == 0) {
    // Not the block that the parent keeps for its next result: both would write to its pages.
    const at::Tensor own = made(1 << 20);
    std::fill_n(static_cast<unsigned char*>(own.data_ptr()), 1 << 20,
                static_cast<unsigned char>(9));
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(std::all_of(bytes, bytes + (1 << 20), [](unsigned char b) { return b == 7; }));
  const at::Tensor next = made(1 << 20);
  EXPECT_NE(static_cast<unsigned char*>(next.data_ptr())[0], 9);
}

}  // namespace
}  // namespace meshrun
