#include "coordinator/state_machine/event_causes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

class EventCausesTest : public ::testing::Test {
 protected:
  std::vector<v1::ClusterEvent> Events(const std::string& job_id) {
    v1::StateEvent event;
    event.mutable_get_job()->set_job_id(job_id);
    const auto& response = h.answer(h.Call(std::move(event))).As<v1::GetJobResponse>();
    return {response.events().begin(), response.events().end()};
  }
  static const v1::ClusterEvent& Of(const std::vector<v1::ClusterEvent>& events,
                                    const std::string& kind) {
    for (auto it = events.rbegin(); it != events.rend(); ++it) {
      if (it->kind() == kind) return *it;
    }
    ADD_FAILURE() << "no event " << kind;
    return events.front();
  }
  static v1::JobSpec Restartable(uint32_t nodes) {
    v1::JobSpec spec = MakeSpec(nodes, 1);
    spec.set_max_restarts(3);
    return spec;
  }
  Harness h;
};

TEST_F(EventCausesTest, TheFirstFailureIsTheCauseOfTheRestart) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(Restartable(1));
  h.Say(worker, worker.Exit(id, 0, 3));
  const auto events = Events(id);
  const v1::ClusterEvent& failed = Of(events, "RankFailed");
  EXPECT_EQ(failed.role(), v1::EVENT_ROLE_CAUSE);
  EXPECT_EQ(failed.cause(), 0u);
  for (const char* kind : {"JobRestarting", "JobAdmitted", "GenerationStarted"}) {
    EXPECT_EQ(Of(events, kind).role(), v1::EVENT_ROLE_ACTION) << kind;
    EXPECT_EQ(Of(events, kind).cause(), failed.sequence()) << kind;
  }
  EXPECT_EQ(events.front().role(), v1::EVENT_ROLE_FACT) << "JobSubmitted";
  // The job runs again: a new failure is a cause of its own.
  h.Say(worker, worker.Exit(id, 0, 4));
  EXPECT_EQ(Of(Events(id), "RankFailed").role(), v1::EVENT_ROLE_CAUSE);
}

TEST_F(EventCausesTest, ALostNodeIsTheCauseOfItsJobsFailure) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(Restartable(1));
  h.Disconnect(worker);
  h.Advance(seconds(6));
  const auto events = Events(id);
  const v1::ClusterEvent& failed = Of(events, "NodeFailed");
  const v1::ClusterEvent& lost = Of(events, "NodeLost");
  EXPECT_EQ(failed.cause(), lost.sequence());
  EXPECT_EQ(failed.role(), v1::EVENT_ROLE_CAUSE);
  EXPECT_EQ(lost.role(), v1::EVENT_ROLE_CAUSE);
}

TEST_F(EventCausesTest, WhatARestartedCoordinatorDoesKeepsItsCause) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(Restartable(1));
  worker.stubborn = true;
  h.Say(worker, worker.Exit(id, 0, 3));
  h.StartCoordinator();
  h.Connect(worker);
  worker.stubborn = false;
  h.Advance(seconds(60));
  const auto events = Events(id);
  EXPECT_EQ(Of(events, "JobAdmitted").cause(), Of(events, "RankFailed").sequence());
}

TEST_F(EventCausesTest, EventsAreListedByJobByNodeAndInPages) {
  FakeWorker& worker = h.AddWorker("node1");
  h.AddWorker("node2");
  const std::string id = h.Submit(MakeSpec(1, 1));
  h.Submit(MakeSpec(1, 1));
  h.Say(worker, worker.ExitAll(id, 0));
  const auto list = [&](const std::string& job, const std::string& node, uint32_t limit,
                        uint64_t after) {
    v1::StateEvent event;
    event.mutable_list_events()->set_job_id(job);
    event.mutable_list_events()->set_node(node);
    event.mutable_list_events()->set_limit(limit);
    event.mutable_list_events()->set_after(after);
    return h.answer(h.Call(std::move(event))).As<v1::ListEventsResponse>();
  };
  const v1::ListEventsResponse first = list(id, "", 3, 0);
  ASSERT_EQ(first.events_size(), 3);
  EXPECT_TRUE(first.more());
  const v1::ListEventsResponse rest = list(id, "", 3, first.events(2).sequence());
  ASSERT_EQ(rest.events_size(), 1);
  EXPECT_EQ(rest.events(0).kind(), "JobSucceeded");
  EXPECT_FALSE(rest.more());
  EXPECT_EQ(list("", "node2", 0, 0).events_size(), 1);
  EXPECT_EQ(list("", "", 0, 0).events_size(), 10);
}

TEST_F(EventCausesTest, EventsOfAForgottenJobAreStillListed) {
  h.retention.set_ended_jobs(1);
  h.retention.mutable_ended_job_least_age();
  h.StartCoordinator();
  const std::string id = h.Submit(MakeSpec(1, 1));
  h.Cancel(id);
  h.Cancel(h.Submit(MakeSpec(1, 1)));
  ASSERT_FALSE(h.machine().jobs().all().contains(id));
  v1::StateEvent event;
  event.mutable_list_events()->set_job_id(id);
  EXPECT_EQ(h.answer(h.Call(event)).As<v1::ListEventsResponse>().events_size(), 3);
}

}  // namespace
}  // namespace meshrun::coordinator::testing
