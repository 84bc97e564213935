// On which stream the Work of several calls finishes, and that it does without anybody waiting.
#include "parallel/comm/point_to_point/point_to_point_work.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/parallel/support/fake_streams.h"

namespace meshrun {
namespace {

using at::Tensor;
using Log = std::vector<std::string>;

// A call that makes the current stream wait, or the host.
class Part : public c10d::Work {
 public:
  explicit Part(FakeStreams* streams = nullptr) : streams_(streams) {}
  bool wait(std::chrono::milliseconds timeout) override {
    if (streams_ != nullptr)
      streams_->note(timeout == kNoTimeout ? "waits" : "waits with the host");
    last_timeout = timeout;
    ++waits;
    return true;
  }
  bool isCompleted() override { return is_done; }

  std::atomic<int> waits{0};
  std::chrono::milliseconds last_timeout{-2};
  bool is_done = true;

 private:
  FakeStreams* const streams_;
};

class OnADeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { streams.use(3); }
  PointToPointWork::Rest rest(bool async) {
    PointToPointWork::Rest made;
    made.device = result.device();
    made.result = result;
    made.kept = {buffer};
    made.async = async;
    made.finish = [this] { streams.note("finishes"); };
    return made;
  }
  c10::intrusive_ptr<PointToPointWork> work(PointToPointWork::Rest what) {
    return c10::make_intrusive<PointToPointWork>(c10d::OpType::ALLGATHER,
                                                 PointToPointWork::Parts{part}, std::move(what));
  }

  FakeStreams& streams = FakeStreams::install();
  const Tensor result = at::empty({4}, at::device(at::kMeta));
  const Tensor buffer = at::empty({4}, at::device(at::kMeta));
  const c10::intrusive_ptr<Part> part = c10::make_intrusive<Part>(&streams);
};

TEST_F(OnADeviceTest, ACallThatIsWaitedForAtOnceFinishesOnItsOwnStream) {
  const auto made = work(rest(/*async=*/false));
  EXPECT_EQ(streams.log(), (Log{"3 waits", "3 finishes"}));
  made->wait();
  EXPECT_EQ(streams.log(), Log{});
  EXPECT_FALSE(streams.is_recorded(result, 3));
  // Another reader's stream waits, too, and the allocator hears of it.
  streams.use(5);
  made->wait();
  EXPECT_EQ(streams.log(), Log{"5 waits for 3"});
  EXPECT_TRUE(streams.is_recorded(result, 5));
}

TEST_F(OnADeviceTest, AnAsynchronousOneFinishesOnAnotherStreamWithoutAWait) {
  const auto made = work(rest(/*async=*/true));
  EXPECT_EQ(streams.log(), (Log{"100 waits", "100 finishes"}));
  EXPECT_EQ(streams.current(), 3);
  for (const Tensor& used : {result, buffer}) EXPECT_TRUE(streams.is_recorded(used, 100));
  for (int i = 0; i < 2; ++i) {
    made->wait();
    EXPECT_EQ(streams.log(), Log{"3 waits for 100"});
  }
  EXPECT_FALSE(streams.is_recorded(result, 3));  // where it was made
  streams.use(5);
  made->wait();
  EXPECT_EQ(streams.log(), Log{"5 waits for 100"});
  EXPECT_TRUE(streams.is_recorded(result, 5));
}

TEST_F(OnADeviceTest, WhatHasNothingToFinishKeepsTheCallersStreamFree) {
  PointToPointWork::Rest what = rest(/*async=*/true);
  what.finish = nullptr;
  const auto made = work(std::move(what));
  EXPECT_EQ(streams.log(), Log{});
  streams.use(5);
  made->wait();
  EXPECT_EQ(streams.log(), Log{"5 waits"});
  // The part no longer holds what it sends.
  for (const Tensor& used : {result, buffer}) EXPECT_TRUE(streams.is_recorded(used, 5));
}

TEST_F(OnADeviceTest, WhatTravelsNowhereIsWaitedForOnAnotherStreamToo) {
  PointToPointWork::Rest what = rest(/*async=*/true);
  what.finish = nullptr;
  const auto made = c10::make_intrusive<PointToPointWork>(
      c10d::OpType::ALLGATHER, PointToPointWork::Parts{}, std::move(what));
  made->wait();
  EXPECT_EQ(streams.log(), Log{});
  streams.use(5);
  made->wait();
  EXPECT_EQ(streams.log(), Log{"5 waits for 3"});
}

TEST_F(OnADeviceTest, TheHostWaitsOnlyWithATimeout) {
  const auto made = work(rest(/*async=*/true));
  streams.log();
  made->wait(std::chrono::seconds(1));
  EXPECT_EQ(streams.log(), (Log{"3 waits with the host", "3 waits for 100"}));
}

TEST_F(OnADeviceTest, ItIsCompletedWhenTheDeviceIs) {
  streams.hold_events(true);
  part->is_done = false;
  const auto made = work(rest(/*async=*/true));
  EXPECT_FALSE(made->isCompleted());
  part->is_done = true;
  EXPECT_FALSE(made->isCompleted());  // received, not yet put into place
  made->wait();
  EXPECT_FALSE(made->isCompleted());
  streams.hold_events(false);
  EXPECT_TRUE(made->isCompleted());
  EXPECT_TRUE(made->isSuccess());
  EXPECT_TRUE(made->result()[0].is_same(result));
}

TEST_F(OnADeviceTest, AnErrorIsRaisedByEveryWait) {
  PointToPointWork::Rest what = rest(/*async=*/true);
  what.finish = [] { throw std::runtime_error("no memory"); };
  const auto made = work(std::move(what));
  EXPECT_EQ(streams.current(), 3);
  for (int i = 0; i < 2; ++i) EXPECT_THROW(made->wait(), std::runtime_error);
  EXPECT_TRUE(made->isCompleted());
  EXPECT_FALSE(made->isSuccess());
}

TEST_F(OnADeviceTest, ARankWithoutAResultIsOnTheDeviceToo) {
  PointToPointWork::Rest what;
  what.device = result.device();
  const auto made = work(std::move(what));
  made->wait();
  EXPECT_EQ(streams.log(), Log{"3 waits"});
}

class OnTheCpuTest : public ::testing::Test {
 protected:
  PointToPointWork::Rest rest() {
    PointToPointWork::Rest made;
    made.finish = [this] { ++finished; };
    return made;
  }
  c10::intrusive_ptr<PointToPointWork> work(PointToPointWork::Parts parts) {
    return c10::make_intrusive<PointToPointWork>(c10d::OpType::ALLGATHER, std::move(parts), rest());
  }

  std::atomic<int> finished{0};
  const c10::intrusive_ptr<Part> part = c10::make_intrusive<Part>();
};

TEST_F(OnTheCpuTest, AWorkThatNobodyWaitsForCompletesItsOutput) {
  work({part});
  EXPECT_EQ(part->waits, 1);
  EXPECT_EQ(finished, 1);
}

TEST_F(OnTheCpuTest, WaitingTwiceFinishesOnce) {
  {
    const auto made = work({part});
    EXPECT_EQ(finished, 0);
    made->wait();
    made->wait();
    EXPECT_TRUE(made->isCompleted());
  }
  EXPECT_EQ(finished, 1);
}

TEST_F(OnTheCpuTest, WithoutACallItIsCompletedAtOnce) {
  const auto made = work({});
  EXPECT_EQ(finished, 1);
  EXPECT_TRUE(made->isCompleted());
}

TEST_F(OnTheCpuTest, TheTimeoutIsTheWaitsElseTheCallsElseTheParts) {
  using std::chrono::milliseconds;
  const auto with = [&](milliseconds timeout) {
    PointToPointWork::Rest what = rest();
    what.timeout = timeout;
    return c10::make_intrusive<PointToPointWork>(c10d::OpType::ALLGATHER,
                                                 PointToPointWork::Parts{part}, std::move(what));
  };
  with(milliseconds(5000))->wait(milliseconds(70));
  EXPECT_EQ(part->last_timeout, milliseconds(70));
  with(milliseconds(5000))->wait();
  EXPECT_EQ(part->last_timeout, milliseconds(5000));
  with(milliseconds(-1))->wait();
  EXPECT_EQ(part->last_timeout, kNoTimeout);
  with(milliseconds(6000));
  EXPECT_EQ(part->last_timeout, milliseconds(6000)) << "the destructor's wait";
}

// Whoever caused the exception may be the peer that would be waited for.
TEST_F(OnTheCpuTest, AnExceptionDoesNotWaitForThePeers) {
  try {
    const auto made = work({part});
    throw std::runtime_error("a step failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(part->waits, 0);
  EXPECT_EQ(finished, 0);
}

}  // namespace
}  // namespace meshrun
