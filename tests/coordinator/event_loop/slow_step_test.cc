// What the log says of events that the state machine takes long for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>

#include "coordinator/event_loop/event_loop.h"
#include "coordinator/state_store/memory_state_store.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class AwaitedCall : public PendingCall {
 public:
  void Reply(const absl::Status& status, const MessagePtr&) override { status_.set_value(status); }
  absl::Status Await() { return status_.get_future().get(); }

 private:
  std::promise<absl::Status> status_;
};

// What a loop with this limit logs while bob submits a job.
std::string LogOfASubmit(SteadyNanos slow_step) {
  MemoryStateStore store;
  Recipients recipients;
  AwaitedCall call;
  EventLoop loop{
      {.clock = Clock::Real(), .store = store, .recipients = recipients, .slow_step = slow_step}};
  EXPECT_TRUE(loop.Start().ok());
  v1::StateEvent event;
  event.set_call_id(loop.NewId());
  event.mutable_caller()->set_user("bob");
  *event.mutable_submit_job()->mutable_spec() = MakeSpec(1, 1);
  recipients.AddCall(event.call_id(), &call);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(loop.Post(std::move(event)).ok());
  EXPECT_TRUE(call.Await().ok());
  loop.Stop();
  return ::testing::internal::GetCapturedStderr();
}

TEST(SlowStepTest, AnEventThatTakesLongIsNamedWithItsUser) {
  EXPECT_THAT(LogOfASubmit(SteadyNanos(0)),
              ContainsRegex("warning .*an event took long: everybody waited for it "
                            "event=submit_job ms=[0-9]+ bytes=[0-9]+ user=bob\n"));
}

TEST(SlowStepTest, OneThatTakesLessIsNotNamed) {
  EXPECT_THAT(LogOfASubmit(std::chrono::hours(1)), Not(HasSubstr("an event took long")));
}

}  // namespace
}  // namespace meshrun::coordinator::testing
