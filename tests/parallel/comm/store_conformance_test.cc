// What every c10d store that ranks meet through must do; c10d's own TCPStore is held to it beside
// ours.
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/base/network.h"
#include "parallel/comm/store/agent_store.h"
#include "tests/parallel/support/fake_agent.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace meshrun {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<uint8_t>;
using ::testing::HasSubstr;

struct Implementation {
  const char* name;
  std::function<c10::intrusive_ptr<c10d::Store>()> make;
};

std::shared_ptr<FakeAgent> fake_agent() {
  return std::make_shared<FakeAgent>(agent::Assignment{}, c10::make_intrusive<c10d::HashStore>());
}

c10::intrusive_ptr<c10d::Store> make_tcp_store() {
  os::UniqueFd socket = *bind_port("127.0.0.1", 0);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(bound_port(socket));
  options.masterListenFd = socket.release();
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

class StoreConformanceTest : public ::testing::TestWithParam<Implementation> {
 protected:
  c10::intrusive_ptr<c10d::Store> store_ = GetParam().make();
};

TEST_P(StoreConformanceTest, KeepsBytesAsTheyAre) {
  const Bytes value = {0, 255, 10, 0, 7};
  store_->set("key", value);
  EXPECT_EQ(store_->get("key"), value);
  store_->set("empty", Bytes());
  EXPECT_EQ(store_->get("empty"), Bytes());
  store_->set("key", std::string("text"));
  EXPECT_EQ(store_->get_to_str("key"), "text");
}

TEST_P(StoreConformanceTest, AddsFromZero) {
  EXPECT_EQ(store_->add("counter", 5), 5);
  EXPECT_EQ(store_->add("counter", -7), -2);
  EXPECT_EQ(store_->get_to_str("counter"), "-2");
}

TEST_P(StoreConformanceTest, CompareSetSetsWhatIsMissingOrEqual) {
  EXPECT_EQ(store_->compareSet("key", std::string("other"), std::string("new")), "other");
  EXPECT_EQ(store_->compareSet("key", std::string(), std::string("first")), "first");
  EXPECT_EQ(store_->compareSet("key", std::string(), std::string("second")), "first");
  EXPECT_EQ(store_->compareSet("key", std::string("first"), std::string("second")), "second");
}

TEST_P(StoreConformanceTest, ChecksAndDeletes) {
  EXPECT_FALSE(store_->check({"a"}));
  store_->set("a", std::string("1"));
  store_->set("b", std::string("2"));
  EXPECT_TRUE(store_->check({"a", "b"}));
  EXPECT_FALSE(store_->check({"a", "c"}));
  EXPECT_TRUE(store_->deleteKey("a"));
  EXPECT_FALSE(store_->deleteKey("a"));
  EXPECT_FALSE(store_->check({"a"}));
}

TEST_P(StoreConformanceTest, WaitingEndsAtTheTimeoutWithAStoreError) {
  EXPECT_THROW(store_->wait({"never"}, milliseconds(20)), c10::DistStoreError);
  store_->setTimeout(milliseconds(20));
  EXPECT_THROW(store_->get("never"), c10::DistStoreError);
}

TEST_P(StoreConformanceTest, AWaitingGetSeesTheValueOfAnotherClone) {
  const auto clone = store_->clone();
  std::future<std::string> value =
      std::async(std::launch::async, [&] { return clone->get_to_str("late"); });
  store_->set("late", std::string("here"));
  EXPECT_EQ(value.get(), "here");
}

TEST_P(StoreConformanceTest, TheExtendedInterfaceWorks) {
  ASSERT_TRUE(store_->hasExtendedApi());
  store_->multiSet({"a", "b"}, {{1}, {2, 3}});
  EXPECT_EQ(store_->multiGet({"b", "a"}), (std::vector<Bytes>{{2, 3}, {1}}));
  store_->append("a", {4});
  store_->append("new", {5});
  EXPECT_EQ(store_->get("a"), (Bytes{1, 4}));
  EXPECT_EQ(store_->get("new"), (Bytes{5}));
}

INSTANTIATE_TEST_SUITE_P(
    AllStores, StoreConformanceTest,
    ::testing::Values(Implementation{"Agent",
                                     [] { return c10::make_intrusive<AgentStore>(fake_agent()); }},
                      Implementation{"Tcp", make_tcp_store}),
    [](const ::testing::TestParamInfo<Implementation>& info) {
      return std::string(info.param.name);
    });

TEST(AgentStoreTest, UniqueIdsGoThroughTheOneShotExchange) {
  const std::shared_ptr<FakeAgent> agent = fake_agent();
  const auto store = c10::make_intrusive<AgentStore>(agent, milliseconds(20));
  const std::string key = "instance/0/group/world/0,1/nccl/0";
  store->set(key, Bytes(128, 9));
  EXPECT_EQ(store->get(key), Bytes(128, 9));
  EXPECT_EQ(*agent->AwaitUniqueId(key, milliseconds(20)), std::string(128, 9));
  EXPECT_FALSE(*agent->Check({key}));
  EXPECT_THROW(store->set(key, Bytes(128, 8)), c10::DistStoreError);
  EXPECT_EQ(store->multiGet({key}), std::vector<Bytes>{Bytes(128, 9)});
  EXPECT_THROW(store->get("x/nccl/1"), c10::DistStoreError);
}

TEST(AgentStoreTest, OnlyKeysBelowTheNcclPrefixAreUniqueIds) {
  for (const char* key : {"nccl/0", "a/nccl/12", "a/nccl/0:1", "a/nccl/UniqueNCCLID:3"})
    EXPECT_TRUE(is_unique_id_key(key)) << key;
  for (const char* key : {"0", "a/0", "a/gloo/0", "a/nccl/", "a/nccl/x", "a/nccl/0:x", "a/xnccl/0",
                          "a/nccl/0/1", "a/nccl/:1"}) {
    EXPECT_FALSE(is_unique_id_key(key)) << key;
  }
}

TEST(AgentStoreTest, CodesBecomeC10dsExceptions) {
  const std::shared_ptr<FakeAgent> agent = fake_agent();
  const auto store = c10::make_intrusive<AgentStore>(agent);
  for (const absl::Status& status :
       {absl::UnavailableError("gone"), absl::FailedPreconditionError("generation 3 is over"),
        absl::CancelledError("closing")}) {
    agent->fail_with(status);
    EXPECT_THROW(store->get("key"), c10::DistNetworkError);
    EXPECT_THROW(store->set("key", Bytes{1}), c10::DistNetworkError);
  }
  agent->fail_with(absl::FailedPreconditionError("generation 3 is over"));
  try {
    store->add("key", 1);
    FAIL();
  } catch (const c10::DistNetworkError& error) {
    EXPECT_THAT(error.what(), HasSubstr("generation 3 is over"));
  }
  agent->fail_with(absl::OkStatus());
  EXPECT_THROW(store->multiSet({"a", "b"}, {{1}}), c10::ValueError);
}

}  // namespace
}  // namespace meshrun
