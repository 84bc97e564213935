#include "parallel/base/shared_heap.h"

#include <linux/mempolicy.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "core/os/process_stat.h"
#include "gtest/gtest.h"
#include "parallel/base/numa.h"

namespace meshrun {
namespace {

constexpr size_t kPage = SharedHeap::kGranule;

TEST(SharedHeapTest, PagesLieOnTheOwnersNode) {
  // One core: cores of several nodes prefer none.
  cpu_set_t before, pinned;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&pinned);
  CPU_SET(static_cast<size_t>(sched_getcpu()), &pinned);
  ASSERT_EQ(sched_setaffinity(0, sizeof(pinned), &pinned), 0);
  const std::optional<int> node = own_numa_node();
  const auto heap = SharedHeap::create(4 * kPage);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  ASSERT_NE(heap, nullptr);
  EXPECT_EQ(heap->numa_node(), node);
  if (!node) GTEST_SKIP() << "no NUMA in this kernel, or a policy of the caller's";
  void* const block = heap->allocate(kPage);
  ASSERT_NE(block, nullptr);
  // Whoever maps it: the policy is the file's.
  const auto peer = PeerHeap::open(heap->address());
  ASSERT_NE(peer, nullptr);
  for (void* const address : {block, static_cast<void*>(peer->at(kPage, 1))}) {
    int mode = -1;
    unsigned long nodes[16] = {};
    ASSERT_EQ(syscall(SYS_get_mempolicy, &mode, nodes, 1024, address, MPOL_F_ADDR), 0);
    EXPECT_EQ(mode, MPOL_PREFERRED);
    EXPECT_EQ(nodes[*node / 64], 1ul << (*node % 64));
  }
}

TEST(SharedHeapTest, BlocksAreApartAndFreedOnesAreUsedAgain) {
  const auto heap = SharedHeap::create(9 * kPage);
  ASSERT_NE(heap, nullptr);
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(heap->allocate(kPage + 1));
    ASSERT_NE(blocks.back(), nullptr);
    std::memset(blocks.back(), i + 1, 2 * kPage);
  }
  EXPECT_EQ(heap->allocate(1), nullptr);
  EXPECT_EQ(heap->used_bytes(), 8 * kPage);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(static_cast<const char*>(blocks[i])[2 * kPage - 1], i + 1);
  }
  // Neighbours become one, whichever goes first.
  for (const int i : {1, 3, 0, 2}) heap->free(blocks[i]);
  EXPECT_EQ(heap->used_bytes(), 0u);
  void* const all = heap->allocate(8 * kPage);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(static_cast<const char*>(all)[0], 0) << "its pages were given back";
}

TEST(SharedHeapTest, KnowsWhatIsItsOwn) {
  const auto heap = SharedHeap::create(4 * kPage);
  auto* const block = static_cast<std::byte*>(heap->allocate(2 * kPage));
  EXPECT_EQ(heap->offset_of(block, 2 * kPage), kPage);
  EXPECT_EQ(heap->offset_of(block + 5, 7), kPage + 5);
  EXPECT_EQ(heap->offset_of(block, 4 * kPage), std::nullopt) << "past the end";
  EXPECT_EQ(heap->offset_of(block - 1, 1), std::nullopt) << "the page with the token";
  EXPECT_EQ(heap->offset_of(&heap, sizeof(heap)), std::nullopt);
}

TEST(PeerHeapTest, AnotherProcessWritesIntoIt) {
  const auto heap = SharedHeap::create(4 * kPage);
  auto* const block = static_cast<char*>(heap->allocate(kPage));
  const uint64_t offset = *heap->offset_of(block, kPage);
  const pid_t child = fork();
  if (child == 0) {
    const auto peer = PeerHeap::open(heap->address());
    if (peer == nullptr) _exit(1);
    std::memcpy(peer->at(offset, 6), "hello", 6);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_STREQ(block, "hello");
}

TEST(SharedHeapTest, AForkedChildFreesNothingAndHasAHeapOfItsOwn) {
  SharedHeap* const heap = SharedHeap::of_process();
  ASSERT_NE(heap, nullptr);
  auto* const block = static_cast<char*>(heap->allocate(kPage));
  std::strcpy(block, "kept");
  const pid_t child = fork();
  if (child == 0) {
    heap->free(block);
    SharedHeap* const own = SharedHeap::of_process();
    const bool is_right = heap->is_inherited() && heap->allocate(1) == nullptr && own != nullptr &&
                          own != heap && own->address().pid == getpid() &&
                          own->allocate(kPage) != nullptr;
    _exit(is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_STREQ(block, "kept");
  heap->free(block);
}

// A child that inherits a lock waits for it for ever; `alarm` ends that.
TEST(SharedHeapTest, AThreadForksWhileAnotherAllocates) {
  constexpr int kForks = 100;
  SharedHeap* const heap = SharedHeap::of_process();
  ASSERT_NE(heap, nullptr);
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    while (!is_over) heap->free(heap->allocate(1));
  });
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      // Both heaps are right.
      const bool is_right = heap->used_bytes() <= 2 * kPage &&
                            SharedHeap::of_process()->allocate(1) != nullptr &&
                            SharedHeap::of_process()->used_bytes() == kPage;
      _exit(is_right ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0) << "fork " << i;
  }
  is_over = true;
  other.join();
}

TEST(PeerHeapTest, KnowsWhetherItsOwnerHasEnded) {
  const auto heap = SharedHeap::create(4 * kPage);
  EXPECT_FALSE(PeerHeap::open(heap->address())->has_owner_ended());
  int address_pipe[2], end_pipe[2];
  ASSERT_EQ(pipe(address_pipe), 0);
  ASSERT_EQ(pipe(end_pipe), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(end_pipe[1]);
    const auto own = SharedHeap::create(4 * kPage);
    const HeapAddress address = own->address();
    bool is_right = write(address_pipe[1], &address, sizeof(address)) == sizeof(address);
    char end;
    is_right = is_right && read(end_pipe[0], &end, 1) == 0;
    _exit(is_right ? 0 : 1);
  }
  HeapAddress address;
  ASSERT_EQ(read(address_pipe[0], &address, sizeof(address)), ssize_t{sizeof(address)});
  const auto peer = PeerHeap::open(address);
  ASSERT_NE(peer, nullptr);
  EXPECT_FALSE(peer->has_owner_ended());
  for (const int fd : {end_pipe[0], end_pipe[1], address_pipe[0], address_pipe[1]}) close(fd);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, child, &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(peer->has_owner_ended()) << "though nobody has taken note of it";
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(peer->has_owner_ended());
}

// A process with a heap, of which this one has the address.
class OwnerProcess {
 public:
  // `run` is what it does then; it must not return.
  explicit OwnerProcess(const std::function<void()>& run) {
    int address_pipe[2];
    EXPECT_EQ(pipe(address_pipe), 0);
    pid_ = fork();
    if (pid_ == 0) {
      alarm(60);
      const auto own = SharedHeap::create(4 * kPage);
      const HeapAddress address = own->address();
      if (write(address_pipe[1], &address, sizeof(address)) != sizeof(address)) _exit(1);
      close(address_pipe[1]);
      run();
      _exit(1);
    }
    close(address_pipe[1]);
    EXPECT_EQ(read(address_pipe[0], &address_, sizeof(address_)), ssize_t{sizeof(address_)});
    close(address_pipe[0]);
  }
  ~OwnerProcess() { end(); }

  pid_t pid() const { return pid_; }
  const HeapAddress& address() const { return address_; }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  HeapAddress address_;
};

TEST(PeerHeapTest, AnOwnerWhoseFirstThreadIsGoneMayStillWrite) {
  int begin[2];
  ASSERT_EQ(pipe(begin), 0);
  OwnerProcess owner([&] {
    close(begin[1]);
    char end;
    if (read(begin[0], &end, 1) != 0) _exit(1);
    std::thread([] {
      while (true) pause();
    }).detach();
    // Ends this thread alone; pthread_exit() is an exception, which GoogleTest would catch.
    syscall(SYS_exit, 0);
  });
  // While /proc shows the first thread's descriptors.
  const auto peer = PeerHeap::open(owner.address());
  ASSERT_NE(peer, nullptr);
  for (const int fd : begin) close(fd);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!os::ReadProcessStat(owner.pid())->IsZombie()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::yield();
  }
  EXPECT_FALSE(peer->has_owner_ended());
  owner.end();
  EXPECT_TRUE(peer->has_owner_ended());
}

TEST(PeerHeapTest, AnotherProcessWithItsNumberIsNotTheOwner) {
  OwnerProcess owner([] {
    while (true) pause();
  });
  const auto peer = PeerHeap::open(owner.address());
  ASSERT_NE(peer, nullptr);
  EXPECT_FALSE(peer->has_owner_ended());
  const pid_t number = owner.pid();
  const uint64_t start = os::ReadProcessStat(number)->start_ticks;
  owner.end();
  // Start times are in ticks of 10 ms: until it is another one.
  for (bool is_later = false; !is_later;) {
    clone_args arguments{};
    arguments.exit_signal = SIGCHLD;
    arguments.set_tid = reinterpret_cast<uint64_t>(&number);
    arguments.set_tid_size = 1;
    const auto other = static_cast<pid_t>(syscall(SYS_clone3, &arguments, sizeof(arguments)));
    if (other == 0) {
      while (true) pause();
    }
    if (other < 0) GTEST_SKIP() << "a process cannot be given a number here";
    is_later = os::ReadProcessStat(number)->start_ticks != start;
    if (is_later) {
      EXPECT_TRUE(peer->has_owner_ended());
    }
    kill(number, SIGKILL);
    EXPECT_EQ(waitpid(number, nullptr, 0), number);
  }
}

TEST(PeerHeapTest, NothingOutsideOfItIsReached) {
  const auto heap = SharedHeap::create(4 * kPage);
  const auto peer = PeerHeap::open(heap->address());
  ASSERT_NE(peer, nullptr);
  EXPECT_NE(peer->at(kPage, 3 * kPage), nullptr);
  EXPECT_EQ(peer->at(kPage, 3 * kPage + 1), nullptr);
  EXPECT_EQ(peer->at(0, 1), nullptr);
  EXPECT_EQ(peer->at(~uint64_t{0}, 16), nullptr) << "no offer";
}

TEST(PeerHeapTest, WhatIsNotTheHeapIsNotMapped) {
  const auto heap = SharedHeap::create(4 * kPage);
  HeapAddress address = heap->address();
  address.token ^= 1;
  EXPECT_EQ(PeerHeap::open(address), nullptr);
  address = heap->address();
  address.bytes += static_cast<int64_t>(kPage);
  EXPECT_EQ(PeerHeap::open(address), nullptr);
  address = heap->address();
  address.fd = STDERR_FILENO;
  EXPECT_EQ(PeerHeap::open(address), nullptr);
}

}  // namespace
}  // namespace meshrun
