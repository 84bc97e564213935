#include "coordinator/event_loop/senders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error_detail.h"

namespace meshrun::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

v1::StateEvent CallOf(const std::string& user, const std::string& node = "") {
  v1::StateEvent event;
  event.mutable_list_jobs();
  event.mutable_caller()->set_user(user);
  if (!node.empty()) event.mutable_caller()->add_nodes(node);
  return event;
}

// A queue of events that nobody takes until Step.
class Queue {
 public:
  explicit Queue(const Senders::Limits& limits) : senders(limits) {}

  absl::Status Call(const v1::StateEvent& event, size_t bytes = 100) {
    Senders::Event sent = Senders::EventOf(event, bytes);
    const absl::Status status = senders.Admit(sent);
    if (!status.ok()) return status;
    senders.OnQueued(sent, now);
    queue.push_back(sent);
    return status;
  }
  // How many of `count` calls are let in.
  int Calls(const v1::StateEvent& event, int count) {
    int admitted = 0;
    for (int i = 0; i < count; ++i) admitted += Call(event).ok();
    return admitted;
  }
  // All that wait are stepped, in so long each.
  void Step(SteadyNanos each) {
    for (const Senders::Event& sent : queue) {
      senders.OnTaken(sent);
      senders.OnStepped(sent, each);
    }
    queue.clear();
  }

  Senders senders;
  std::vector<Senders::Event> queue;
  SteadyNanos now = seconds(1000);
};

TEST(SendersTest, AsManyWaitAsTakeTheTime) {
  Queue queue({.time = milliseconds(50), .least = 4, .most = 1000});
  const v1::StateEvent call = CallOf("ada");
  EXPECT_EQ(queue.Calls(call, 2000), 100)
      << "of unknown ones, each is taken for half a millisecond";
  queue.Step(milliseconds(5));
  EXPECT_EQ(queue.Calls(call, 2000), 10);
  queue.Step(milliseconds(500));
  EXPECT_EQ(queue.Calls(call, 2000), 4) << "never fewer";
  for (int i = 0; i < 1000; ++i) {
    queue.Step(std::chrono::microseconds(1));
    queue.Call(call).IgnoreError();
    queue.now += seconds(1);
  }
  EXPECT_EQ(queue.Calls(call, 2000) + 1, 1000) << "never more";
}

TEST(SendersTest, OthersAndOtherKindsOfCallsAreNotConcerned) {
  Queue queue({.least = 1});
  queue.Call(CallOf("bob")).IgnoreError();
  queue.Step(milliseconds(30));
  EXPECT_EQ(queue.Calls(CallOf("bob"), 100), 2);
  EXPECT_EQ(queue.Calls(CallOf("ada"), 100), 100);
  // A user and a node of one name are two.
  EXPECT_EQ(queue.Calls(CallOf("bob", "n1"), 100), 100);
  queue.Step(milliseconds(30));
  v1::StateEvent other = CallOf("bob");
  other.mutable_get_job();
  EXPECT_EQ(queue.Calls(other, 1000), 100);
}

TEST(SendersTest, ARefusalNamesWhoAndTheWait) {
  Queue queue({.least = 1});
  queue.Call(CallOf("bob")).IgnoreError();
  queue.Step(milliseconds(400));
  ASSERT_TRUE(queue.Call(CallOf("bob")).ok());
  const absl::Status refused = queue.Call(CallOf("bob"));
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("user bob has 1 calls"));
  EXPECT_EQ(RetryAfter(refused), milliseconds(400));
}

TEST(SendersTest, BytesThatWait) {
  Queue queue({.bytes = 1000});
  EXPECT_TRUE(queue.Call(CallOf("ada"), 5000).ok()) << "one call of any size";
  EXPECT_FALSE(queue.Call(CallOf("ada"), 1).ok());
  queue.Step(milliseconds(1));
  EXPECT_TRUE(queue.Call(CallOf("ada"), 1).ok());
}

TEST(SendersTest, ASessionIsFullUntilHalfOfItIsTaken) {
  Queue queue({.time = milliseconds(2), .least = 1});
  v1::StateEvent message;
  message.mutable_session_message()->set_session_id(7);
  message.mutable_session_message()->mutable_message()->mutable_heartbeat();
  const std::string name = Senders::EventOf(message, 0).sender;
  std::vector<Senders::Event> waiting;
  while (!queue.senders.IsFull(name)) {
    waiting.push_back(Senders::EventOf(message, 10));
    queue.senders.OnQueued(waiting.back(), queue.now);
  }
  EXPECT_EQ(waiting.size(), 16u) << "four shares of 2 ms";
  EXPECT_FALSE(queue.senders.HasRoom(name));
  for (int i = 0; i < 8; ++i) queue.senders.OnTaken(waiting[i]);
  EXPECT_FALSE(queue.senders.HasRoom(name));
  queue.senders.OnTaken(waiting[8]);
  EXPECT_TRUE(queue.senders.HasRoom(name));
}

TEST(SendersTest, WhoAsksNoMoreIsForgotten) {
  Queue queue({});
  queue.Calls(CallOf("ada"), 5);
  queue.now += seconds(11);
  queue.senders.Forget(queue.now);
  EXPECT_EQ(queue.senders.size(), 1u) << "her calls wait";
  queue.Step(milliseconds(1));
  queue.senders.Forget(queue.now);
  EXPECT_EQ(queue.senders.size(), 0u);
}

}  // namespace
}  // namespace meshrun::coordinator
