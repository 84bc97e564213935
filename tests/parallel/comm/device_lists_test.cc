// The lists of an indexed plan on a device: copied once, waited for by every stream that reads
// them.
#include "parallel/collectives/plans/device_lists.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/parallel/support/fake_streams.h"

namespace meshrun {
namespace {

class DeviceListsTest : public ::testing::Test {
 protected:
  void SetUp() override { streams.use(3); }

  FakeStreams& streams = FakeStreams::install();
  const IndexedLists host = {at::arange(5), at::arange(0), at::arange(3), at::arange(2)};
};

TEST_F(DeviceListsTest, TheListsKeepTheirSizesAndShareOneCopy) {
  DeviceLists lists(host, c10::Device(c10::DeviceType::Meta));
  const IndexedLists& there = lists.on_current_stream();
  EXPECT_EQ(there.remote.numel(), 5);
  EXPECT_EQ(there.own.numel(), 0);
  EXPECT_EQ(there.offsets.numel(), 3);
  EXPECT_EQ(there.positions.numel(), 2);
  EXPECT_TRUE(there.remote.is_meta());
  EXPECT_TRUE(there.positions.is_alias_of(there.remote));
  EXPECT_TRUE(streams.log().empty());
}

TEST_F(DeviceListsTest, AnotherStreamWaitsOnceAndIsRecorded) {
  streams.hold_events(true);
  DeviceLists lists(host, c10::Device(c10::DeviceType::Meta));
  lists.on_current_stream();
  streams.use(5);
  for (int i = 0; i < 2; ++i) lists.on_current_stream();
  EXPECT_EQ(streams.log(), std::vector<std::string>{"5 waits for 3"});
  EXPECT_TRUE(streams.is_recorded(lists.on_current_stream().remote, 5));
  EXPECT_FALSE(streams.is_recorded(lists.on_current_stream().remote, 3));
}

// A stream that a graph is captured on may not wait for what is outside the graph.
TEST_F(DeviceListsTest, NobodyWaitsForACopyThatIsDone) {
  DeviceLists lists(host, c10::Device(c10::DeviceType::Meta));
  streams.use(5);
  EXPECT_TRUE(streams.is_recorded(lists.on_current_stream().remote, 5));
  EXPECT_TRUE(streams.log().empty());
}

}  // namespace
}  // namespace meshrun
