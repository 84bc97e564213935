#include "parallel/base/shared_heap.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace meshrun {
namespace {

constexpr size_t kPage = SharedHeap::kGranule;

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
