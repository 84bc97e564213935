// Two ranks on one host, of which one lends memory to the other.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/parallel/comm/ucx/executor_cases.h"

namespace meshrun::ucx {

// Rank 1 sends to rank 0, whose memory it can write to.
class LentMemoryTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBytes = 1000;

  explicit LentMemoryTest(bool check_headers = false) : ranks_(2, options(/*seed=*/1)) {
    ranks_.add_world(check_headers);
    memory_ = std::make_shared<int>(1);
    watched_ = memory_;
    target_ = static_cast<std::byte*>(ranks_.heap(0)->allocate(kBytes));
  }

  Simulation::Handle receive() {
    ScheduleBuilder builder(2);
    const Region staging = by_staging_ ? builder.scratch(kBytes) : Region();
    builder.receive(1, {Space::kOutput, 0, 0, kBytes}, {}, staging);
    OperationSpec spec = barrier_spec();
    spec.schedule = std::make_shared<const Schedule>(std::move(builder).finish());
    spec.outputs = {contiguous(by_staging_ ? own_.data() : target_, kBytes)};
    spec.keep_alive = std::move(memory_);
    return ranks_.submit(0, "world", std::move(spec));
  }
  Simulation::Handle send(int64_t size = kBytes) {
    ScheduleBuilder builder(2);
    builder.send(0, {Space::kInput, 0, 0, size});
    OperationSpec spec = barrier_spec();
    spec.schedule = std::make_shared<const Schedule>(std::move(builder).finish());
    spec.inputs = {contiguous(sent_.data(), size)};
    return ranks_.submit(1, "world", std::move(spec));
  }
  void expect_error(int64_t size) {
    const auto received = receive(), sent = send(size);
    ranks_.settle();
    ASSERT_TRUE(received->is_done() && received->failure());
    EXPECT_THAT(received->failure()->message,
                ::testing::HasSubstr("rank 0 expects 1000 bytes, and rank 1 sent"));
    EXPECT_EQ(ranks_.executor(1).counters().pushed_bytes, 0);
  }
  // The receiver fails before it has read that the sender is.
  void expect_kept_until_the_sender_is_through() {
    const auto received = receive();
    ranks_.settle();
    ranks_.asleep = {0};
    const auto sent = send();
    ranks_.settle();
    ASSERT_EQ(ranks_.executor(1).counters().pushed_bytes, kBytes);
    ranks_.executor(0).abort(1, {FailureKind::kAborted, "aborted", {0}});
    ranks_.executor(0).take();
    ASSERT_TRUE(received->is_done() && received->failure());
    EXPECT_TRUE(is_kept());
    ranks_.asleep = {};
    ranks_.settle();
    EXPECT_FALSE(is_kept());
  }
  bool is_kept() const { return !watched_.expired(); }

  Simulation ranks_;
  std::shared_ptr<int> memory_;
  std::weak_ptr<int> watched_;
  std::byte* target_ = nullptr;
  // The receiver's output is not in the heap, its staging is.
  bool by_staging_ = false;
  Bytes own_ = bytes(kBytes, 0);
  Bytes sent_ = bytes(2 * kBytes, 7);
};

class LentBeforeAllAgreeTest : public LentMemoryTest {
 protected:
  LentBeforeAllAgreeTest() : LentMemoryTest(/*check_headers=*/true) {}
};

}  // namespace meshrun::ucx
