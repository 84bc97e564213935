// Jobs that wait for the end of others.
#include "coordinator/state_machine/dependencies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DependenciesTest : public ::testing::Test {
 protected:
  static v1::JobSpec After(const std::vector<std::string>& after) {
    v1::JobSpec spec = MakeSpec(1, 1);
    for (const std::string& text : after) spec.add_after(text);
    return spec;
  }
  std::string Message(const v1::JobSpec& spec) {
    return std::string(h.TrySubmit(spec).status.message());
  }
  void End(const std::string& id, int code = 0) { h.Say(*node, node->ExitAll(id, code)); }
  void Restart() {
    h.StartCoordinator();
    h.Connect(*node);
  }

  Harness h;
  FakeWorker* node = &h.AddWorker("node1", 8);
};

TEST_F(DependenciesTest, AJobStartsOnceTheOtherHasSucceeded) {
  const std::string first = h.Submit(MakeSpec(1, 1));
  const std::string second = h.Submit(After({"ok:" + first}));
  EXPECT_EQ(h.state(second), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(h.job(second).reason(), "waits for " + first + " to succeed");
  EXPECT_EQ(h.state(h.Submit(MakeSpec(1, 1))), v1::JOB_STATE_RUNNING) << "it is behind nobody";
  End(first);
  EXPECT_EQ(h.state(second), v1::JOB_STATE_RUNNING);
}

TEST_F(DependenciesTest, OtherwiseItIsCancelledAndThoseThatWaitForIt) {
  const std::string first = h.Submit(MakeSpec(1, 1));
  const std::string second = h.Submit(After({"ok:" + first}));
  const std::string third = h.Submit(After({"ok:" + second}));
  const std::string cleanup = h.Submit(After({"failed:" + third}));
  const std::string report = h.Submit(After({"any:" + first, "any:" + second}));
  End(first, 1);
  EXPECT_EQ(h.state(second), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(h.job(second).reason(), "it was to wait for " + first + " to succeed, which is FAILED");
  EXPECT_EQ(h.state(third), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(h.state(cleanup), v1::JOB_STATE_RUNNING) << "a cancelled job has not succeeded";
  EXPECT_EQ(h.state(report), v1::JOB_STATE_RUNNING);
}

TEST_F(DependenciesTest, AllMustBeMet) {
  const std::string first = h.Submit(MakeSpec(1, 1));
  const std::string second = h.Submit(MakeSpec(1, 1));
  const std::string both = h.Submit(After({"ok:" + first, "any:" + second}));
  EXPECT_THAT(h.job(both).reason(), HasSubstr("to succeed, and for 1 more"));
  End(first);
  EXPECT_EQ(h.job(both).reason(), "waits for " + second + " to end");
  h.Cancel(second);
  EXPECT_EQ(h.state(both), v1::JOB_STATE_RUNNING);
}

TEST_F(DependenciesTest, WhatHasEndedAlreadyCounts) {
  const std::string first = h.Submit(MakeSpec(1, 1));
  End(first);
  EXPECT_EQ(h.state(h.Submit(After({"ok:" + first}))), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(Message(After({"failed:" + first})),
              HasSubstr("after: it was to wait for " + first + " to fail, which is SUCCEEDED"));
  EXPECT_THAT(Message(After({"ok:nothing"})), HasSubstr("after: no job 'nothing'"));
  for (const char* const wrong : {"ok", "ok:", "okay:x", ":x", ""})
    EXPECT_THAT(Message(After({wrong})), HasSubstr("is no dependency: write ok:ID")) << wrong;
}

// By its beginning, as everywhere.
TEST_F(DependenciesTest, IdsAreWrittenOut) {
  const std::string first = h.Submit(MakeSpec(1, 1));
  const std::string second = h.Submit(After({"ok:" + first.substr(0, first.size() - 2)}));
  EXPECT_THAT(h.job(second).spec().after(), ElementsAre("ok:" + first));
}

TEST_F(DependenciesTest, ARestartForgetsNothing) {
  const std::string first = h.Submit(MakeSpec(1, 1));
  const std::string second = h.Submit(After({"ok:" + first}));
  const std::string third = h.Submit(After({"ok:" + second}));
  Restart();
  EXPECT_EQ(h.state(second), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(h.job(second).reason(), "waits for " + first + " to succeed");
  End(first);
  EXPECT_EQ(h.state(second), v1::JOB_STATE_RUNNING);
  Restart();
  EXPECT_EQ(h.state(third), v1::JOB_STATE_QUEUED);
  h.Cancel(second);
  EXPECT_EQ(h.state(third), v1::JOB_STATE_CANCELLED);
}

TEST_F(DependenciesTest, AHeldJobStaysHeldAndAQueueTimeoutWaits) {
  const std::string first = h.Submit(MakeSpec(1, 1));
  v1::JobSpec spec = After({"ok:" + first});
  spec.set_hold(true);
  spec.mutable_queue_timeout()->set_seconds(5);
  const std::string held = h.Submit(spec);
  spec.set_hold(false);
  const std::string waits = h.Submit(spec);
  h.Advance(seconds(60));
  EXPECT_EQ(h.state(waits), v1::JOB_STATE_QUEUED) << h.job(waits).reason();
  End(first);
  EXPECT_EQ(h.state(waits), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(h.job(held).reason(), HasSubstr("held:"));
}

}  // namespace
}  // namespace meshrun::coordinator::testing
