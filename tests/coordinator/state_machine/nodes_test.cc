#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/proto_time.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(IdentityTest, ACopyOfAStateDirectoryOnAnotherMachineTakesNobodysPlace) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  worker.machine_id = "first";
  h.Connect(worker);
  v1::OpenSessionRequest copy = worker.Hello();
  copy.mutable_hello()->set_machine_id("second");
  copy.mutable_fence()->set_incarnation(9);
  h.Say(worker, {copy});
  EXPECT_TRUE(absl::IsAlreadyExists(h.closed["node1"])) << h.closed["node1"];
  EXPECT_THAT(std::string(h.closed["node1"].message()), HasSubstr("is a copy"));
  EXPECT_EQ(h.node(worker).incarnation(), 1u);
  EXPECT_EQ(h.node(worker).machine_id(), "first");
  // A directory that was moved is that node again, once the old machine is lost.
  h.Advance(seconds(6));
  ASSERT_EQ(h.node(worker).state(), v1::NODE_STATE_LOST);
  worker.machine_id = "second";
  h.Connect(worker);
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_HEALTHY);
}

TEST(IdentityTest, AWorkerOfAnotherClusterIsRefused) {
  Harness h;
  h.cluster_id = "ours";
  h.StartCoordinator();
  FakeWorker& worker = h.AddWorker("node1");
  worker.cluster_id = "ours";
  h.Connect(worker);
  EXPECT_TRUE(h.connected(worker));
  worker.cluster_id = "theirs";
  h.Connect(worker);
  EXPECT_TRUE(absl::IsFailedPrecondition(h.closed["node1"])) << h.closed["node1"];
  EXPECT_THAT(std::string(h.closed["node1"].message()), HasSubstr("--join-cluster ours"));
}

// Names as hosts have them, and a label that is as long as it may be.
TEST(ListNodesTest, ComesInPages) {
  Harness h;
  std::vector<std::string> names;
  for (int i = 1; i <= 12; ++i) {
    names.push_back(fmt::format("node{}.a/b", i));
    h.AddWorkerWith({.name = names.back(), .labels = {{"note", std::string(1 << 20, 'x')}}});
  }
  const auto all = [&](uint32_t page_size, size_t most_bytes) {
    v1::StateEvent list;
    list.mutable_list_nodes()->set_page_size(page_size);
    std::vector<std::string> out;
    int pages = 0;
    do {
      const auto page = h.answer(h.Call(list)).As<v1::ListNodesResponse>();
      EXPECT_LE(page.ByteSizeLong(), most_bytes);
      for (const v1::Node& node : page.nodes()) out.push_back(node.name());
      list.mutable_list_nodes()->set_page_token(page.next_page_token());
    } while (!list.list_nodes().page_token().empty() && ++pages < 20);
    EXPECT_EQ(out, names);
    return pages + 1;
  };
  EXPECT_EQ(all(0, 20u << 20), 1);
  EXPECT_EQ(all(1000, 5u << 20), 4);
  EXPECT_EQ(all(2, 5u << 20), 6);
  v1::StateEvent wrong;
  for (const char* const token : {"x", "9.ab", "."}) {
    wrong.mutable_list_nodes()->set_page_token(token);
    EXPECT_TRUE(absl::IsInvalidArgument(h.answer(h.Call(wrong)).status)) << token;
  }
}

TEST(LeaseTest, HeartbeatsKeepANode) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  h.Advance(seconds(60));
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_HEALTHY);
}

TEST(LeaseTest, ASilentNodeIsLostAtTheEndOfItsLeaseAndNotBefore) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  h.heartbeats = false;
  h.Advance(milliseconds(4999));
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_HEALTHY);
  h.Advance(milliseconds(1));
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_LOST);
  EXPECT_TRUE(absl::IsDeadlineExceeded(h.closed["node1"]));
}

TEST(LeaseTest, ABrokenSessionIsSuspectUntilTheLeaseEnds) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  h.Disconnect(worker);
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_SUSPECT);
  h.Advance(seconds(3));
  h.Connect(worker);
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_HEALTHY);
  h.Disconnect(worker);
  h.Advance(seconds(5));
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_LOST);
}

TEST(LeaseTest, ExpiresOnlyByTheReceiversClock) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  h.clock.StepWall(std::chrono::hours(5));
  h.Advance(seconds(2));
  h.clock.StepWall(-std::chrono::hours(9));
  h.Advance(seconds(2));
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_HEALTHY);
}

TEST(LeaseTest, AStandstillOfTheCoordinatorCostsNobodyTheLease) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  h.clock.Advance(seconds(30));
  v1::StateEvent tick;
  tick.mutable_tick();
  h.Call(tick);
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_HEALTHY);
  h.heartbeats = false;
  h.Advance(seconds(5));
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_LOST);
}

TEST(LeaseTest, AStandstillOfAboutTheLeaseCostsNobodyTheLease) {
  for (const auto span : {milliseconds(4000), milliseconds(5000), milliseconds(5900)}) {
    Harness h;
    FakeWorker& worker = h.AddWorker("node1");
    h.Advance(milliseconds(1900));
    h.clock.Advance(span);
    h.Advance(milliseconds(900));
    EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_HEALTHY) << span.count();
  }
}

TEST(DrainingTest, LastsUntilAHelloThatDoesNotSaySo) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  worker.draining = true;
  h.Say(worker, {worker.Heartbeat()});
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_DRAINING);
  EXPECT_TRUE(h.HasEvent("NodeDraining"));
  h.Disconnect(worker);
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_SUSPECT);
  h.Connect(worker);
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_DRAINING);
  worker.Reboot(/*ranks_survive=*/true);
  h.Connect(worker);
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_HEALTHY);
}

TEST(DrainingTest, NothingNewIsPlacedThere) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  worker.draining = true;
  h.Say(worker, {worker.Heartbeat()});
  const std::string id = h.Submit(MakeSpec(1, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(h.job(id).reason(),
            "needs 1 node, and no worker is connected; 1 that is draining does not count");
  h.AddWorker("node2");
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
}

TEST(LeaseTest, GoodbyeNeedsNoLease) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  h.Say(worker, {worker.Goodbye()});
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_LOST);
  EXPECT_TRUE(h.closed["node1"].ok());
}

TEST(SessionTest, ANewerSessionReplacesTheOlder) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  h.Connect(worker);
  EXPECT_TRUE(absl::IsAborted(h.closed["node1"]));
  EXPECT_TRUE(h.connected(worker));
}

TEST(SessionTest, AnOlderIncarnationIsRefused) {
  Harness h;
  FakeWorker old(FakeWorker::Options{.name = "node1"});
  FakeWorker& worker = h.AddWorker("node1");
  worker.Reboot(false);
  h.Connect(worker);
  h.Connect(old);
  EXPECT_TRUE(absl::IsFailedPrecondition(h.closed["node1"]));
  EXPECT_THAT(std::string(h.closed["node1"].message()), HasSubstr("incarnation 1"));
  EXPECT_TRUE(h.connected(worker));
}

// As over a connection that a network has held up.
TEST(SessionTest, AHelloThatIsOlderThanWhatItsWorkerHasSaidSinceIsRefused) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  const auto say = [&](uint64_t session, v1::OpenSessionRequest message) {
    v1::StateEvent event;
    event.mutable_session_message()->set_session_id(session);
    *event.mutable_session_message()->mutable_message() = std::move(message);
    h.outcome.clear();
    h.Call(event);
    return fmt::format("{}", fmt::join(h.outcome, "; "));
  };
  const auto hello = [&](uint64_t session, uint64_t number, uint32_t attempt,
                         bool draining = false) {
    v1::OpenSessionRequest message = worker.Hello();
    message.mutable_hello()->set_session_number(number);
    message.mutable_hello()->set_attempt(attempt);
    message.mutable_hello()->set_draining(draining);
    return say(session, message);
  };
  const auto heartbeat = [&](uint64_t session) {
    v1::OpenSessionRequest message;
    message.mutable_fence()->CopyFrom(worker.Hello().fence());
    message.mutable_heartbeat()->set_sequence(1);
    return say(session, message);
  };
  const auto refused = HasSubstr("came over another connection");
  EXPECT_THAT(hello(901, 5, 1), Not(refused));
  // Nobody knows yet whether the first one's Welcome arrives.
  EXPECT_THAT(hello(902, 5, 2, true), AllOf(Not(refused), HasSubstr("a newer session")));
  EXPECT_THAT(hello(903, 5, 1), refused);
  EXPECT_THAT(hello(904, 4, 9), refused);
  // They change nothing.
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_DRAINING);
  EXPECT_THAT(heartbeat(902), HasSubstr("heartbeat_reply"));
  EXPECT_THAT(hello(905, 5, 3), refused);
  EXPECT_THAT(heartbeat(902), HasSubstr("heartbeat_reply"));
  EXPECT_THAT(hello(906, 6, 1), Not(refused));
  // A worker that counts none, and one that was started anew.
  EXPECT_THAT(hello(907, 0, 0), Not(refused));
  EXPECT_THAT(hello(908, 7, 1), Not(refused));
  worker.Reboot(true);
  EXPECT_THAT(hello(909, 1, 1), Not(refused));
  // After a loss nobody asks how old it is: a restored copy of a state directory may count lower.
  EXPECT_THAT(hello(910, 9, 1), Not(refused));
  EXPECT_THAT(hello(911, 8, 1), refused);
  h.heartbeats = false;
  h.Advance(seconds(6));
  ASSERT_EQ(h.node(worker).state(), v1::NODE_STATE_LOST);
  EXPECT_THAT(hello(912, 8, 1), Not(refused));
}

TEST(SessionTest, TwoHostsCannotShareAnIdentity) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  FakeWorker copy(FakeWorker::Options{.name = "node1"});
  v1::OpenSessionRequest hello = copy.Hello();
  hello.mutable_hello()->set_addresses(0, "10.0.0.9");
  v1::StateEvent event;
  event.mutable_session_message()->set_session_id(999);
  *event.mutable_session_message()->mutable_message() = hello;
  h.Call(event);
  EXPECT_THAT(h.outcome.back(), HasSubstr("ALREADY_EXISTS"));
  EXPECT_TRUE(h.connected(worker));
}

TEST(NodeTableTest, AllAddressesOfAHostReachItsPeersAlsoAfterARestart) {
  Harness h;
  FakeWorker& worker = h.AddWorkerWith({.name = "node1", .addresses = {"10.0.0.1", "fd00::1"}});
  FakeWorker& other = h.AddWorkerWith({.name = "node2", .addresses = {"10.0.0.2"}});
  const std::string id = h.Submit(MakeSpec(2, 1));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).master_addr(), "10.0.0.1");
  EXPECT_THAT(h.node(worker).addresses(), ElementsAre("10.0.0.1", "fd00::1"));
  const auto start =
      std::find_if(other.received.begin(), other.received.end(),
                   [](const v1::OpenSessionResponse& message) { return message.has_start(); });
  ASSERT_NE(start, other.received.end());
  EXPECT_EQ(start->start().master_addr(), "10.0.0.1");
  EXPECT_THAT(start->start().master_addresses(), ElementsAre("10.0.0.1", "fd00::1"));
  h.StartCoordinator();
  EXPECT_THAT(h.node(worker).addresses(), ElementsAre("10.0.0.1", "fd00::1"));
  v1::StateEvent event;
  *event.mutable_get_world()->mutable_fence() = h.fence(id);
  const auto world = h.answer(h.Call(event)).As<v1::GetWorldResponse>().world();
  ASSERT_EQ(world.addresses_size(), 2);
  EXPECT_EQ(world.addresses(0).node_id(), worker.node_id());
  EXPECT_THAT(world.addresses(0).addresses(), ElementsAre("10.0.0.1", "fd00::1"));
}

TEST(SessionTest, TheFirstMessageIsHello) {
  Harness h;
  FakeWorker stranger(FakeWorker::Options{.name = "x"});
  v1::StateEvent event;
  event.mutable_session_message()->set_session_id(999);
  *event.mutable_session_message()->mutable_message() = stranger.Heartbeat();
  h.Call(event);
  EXPECT_THAT(h.outcome.back(), HasSubstr("close 999 INVALID_ARGUMENT"));
}

TEST(SessionTest, AHostWithoutSlotsIsRefused) {
  Harness h;
  h.AddWorker("node1", 0);
  EXPECT_TRUE(absl::IsInvalidArgument(h.closed["node1"]));
}

TEST(FencingTest, AHigherTermEndsTheSession) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  v1::OpenSessionRequest message = worker.Heartbeat();
  message.mutable_fence()->set_term(h.term() + 1);
  h.Say(worker, {message});
  EXPECT_TRUE(absl::IsUnavailable(h.closed["node1"]));
}

TEST(FencingTest, AHelloOfAHigherTermIsRefusedWithBothTerms) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  Harness successor;
  successor.StartCoordinator();
  successor.Connect(worker);
  h.Disconnect(worker);
  h.Connect(worker);
  EXPECT_TRUE(absl::IsUnavailable(h.closed["node1"]));
  EXPECT_THAT(std::string(h.closed["node1"].message()),
              HasSubstr("in term 1, and node1 knows term 2"));
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_SUSPECT);
}

TEST(FencingTest, MessagesOfOlderTermsIncarnationsAndGenerationsChangeNothing) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  v1::JobSpec spec = MakeSpec(1, 2);
  spec.set_max_restarts(1);
  const std::string id = h.Submit(spec);
  h.Say(worker, worker.Exit(id, 0, 1));
  ASSERT_EQ(h.job(id).generation(), 2u);
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  v1::OpenSessionRequest exit = worker.Heartbeat();
  exit.mutable_rank_exit()->set_exit_code(1);
  exit.mutable_fence()->set_job_id(id);
  exit.mutable_fence()->set_generation(1);
  h.Say(worker, {exit});
  exit.mutable_fence()->set_generation(2);
  exit.mutable_fence()->set_incarnation(0);
  h.Say(worker, {exit});
  exit.mutable_fence()->set_incarnation(1);
  exit.mutable_fence()->set_term(0);
  h.Say(worker, {exit});
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  exit.mutable_fence()->set_term(h.term());
  h.Say(worker, {exit});
  EXPECT_NE(h.state(id), v1::JOB_STATE_RUNNING);
}

TEST(NodeTableTest, ALostNodeGoesAtItsAge) {
  Harness h;
  h.retention.mutable_lost_node_age()->set_seconds(60);
  h.StartCoordinator();
  FakeWorker& a = h.AddWorker("a");
  FakeWorker& b = h.AddWorker("b");
  v1::StateEvent drain;
  drain.mutable_drain_node()->set_node("b");
  h.Call(drain);
  h.Say(a, {a.Goodbye()});
  h.Say(b, {b.Goodbye()});
  h.Advance(seconds(59));
  h.StartCoordinator();
  EXPECT_EQ(h.machine().nodes().all().size(), 2u);
  h.Advance(seconds(62));
  ASSERT_EQ(h.machine().nodes().all().size(), 1u);
  EXPECT_EQ(h.machine().nodes().all().begin()->second.record.name(), "b") << "it is drained";
}

class QuarantineTest : public ::testing::Test {
 protected:
  QuarantineTest() {
    h.quarantine.set_absences(3);
    *h.quarantine.mutable_window() = ToProtoDuration(std::chrono::minutes(10));
    h.quarantine.set_refused_jobs(3);
    h.StartCoordinator();
  }
  // Its lease ends, and it returns.
  void Flap(FakeWorker& worker) {
    h.Disconnect(worker);
    h.Advance(seconds(6));
    ASSERT_EQ(h.node(worker).state(), v1::NODE_STATE_LOST);
    h.Connect(worker);
    ASSERT_EQ(h.node(worker).state(), v1::NODE_STATE_HEALTHY);
  }
  // Its worker begins anew before the lease ends.
  void Reboot(FakeWorker& worker, bool ranks_survive) {
    h.Disconnect(worker);
    worker.Reboot(ranks_survive);
    h.Advance(seconds(1));
    h.Connect(worker);
  }
  size_t absences(const FakeWorker& worker) {
    return h.machine().nodes().all().at(worker.node_id()).absences.size();
  }
  v1::StateEvent Drain() {
    v1::StateEvent event;
    event.mutable_drain_node()->set_node("a");
    return event;
  }
  v1::StateEvent Undrain() {
    v1::StateEvent event;
    event.mutable_undrain_node()->set_node("a");
    return event;
  }

  Harness h;
  int requests_ = 0;
};

TEST_F(QuarantineTest, ANodeThatGoesAwayTooOftenTakesNoJobsUntilItIsUndrained) {
  FakeWorker& bad = h.AddWorker("a");
  FakeWorker& good = h.AddWorker("b");
  Flap(bad);
  // What was counted lasts over a restart of the coordinator.
  h.StartCoordinator();
  h.Connect(bad);
  h.Connect(good);
  Flap(bad);
  EXPECT_FALSE(h.node(bad).drained());
  Flap(bad);
  EXPECT_TRUE(h.node(bad).quarantined());
  EXPECT_TRUE(h.node(bad).drained());
  EXPECT_EQ(h.node(bad).drained_because(), "quarantined: it went away 3 times within 10m");
  EXPECT_TRUE(h.HasEvent("NodeQuarantined"));
  h.StartCoordinator();
  h.Connect(bad);
  h.Connect(good);
  EXPECT_TRUE(h.node(bad).quarantined());
  const std::string two = h.Submit(MakeSpec(2, 1));
  EXPECT_EQ(h.state(two), v1::JOB_STATE_QUEUED);
  ASSERT_TRUE(h.answer(h.Call(Undrain())).status.ok());
  EXPECT_FALSE(h.node(bad).quarantined());
  EXPECT_EQ(h.state(two), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(bad.Carries(two));
  Reboot(bad, /*ranks_survive=*/true);
  EXPECT_FALSE(h.node(bad).quarantined()) << "it begins at nothing";
}

TEST_F(QuarantineTest, ANodeThatCanPrepareNoJobTakesNoneUntilItIsUndrained) {
  FakeWorker& bad = h.AddWorker("a");
  FakeWorker& good = h.AddWorker("b");
  bad.prepare_error = "no space left on device";
  h.Submit(MakeSpec(1, 1));
  h.Submit(MakeSpec(1, 1));
  // What was counted lasts over a restart of the coordinator.
  h.StartCoordinator();
  h.Connect(bad);
  h.Connect(good);
  EXPECT_FALSE(h.node(bad).quarantined());
  h.Submit(MakeSpec(1, 1));
  EXPECT_TRUE(h.node(bad).quarantined());
  const std::string wide = h.Submit(MakeSpec(1, 7));
  EXPECT_EQ(h.state(wide), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(
      h.node(bad).drained_because(),
      "quarantined: it could not prepare 3 jobs that others could, one after another, the last one "
      "for: no space left on device");
  EXPECT_TRUE(h.HasEvent("NodeQuarantined"));
  bad.prepare_error.clear();
  ASSERT_TRUE(h.answer(h.Call(Undrain())).status.ok());
  EXPECT_EQ(bad.Running(wide).size(), 7u) << "a person has said that the node is well";
}

TEST_F(QuarantineTest, APreparedJobEndsTheCountOfRefusals) {
  FakeWorker& worker = h.AddWorker("a");
  h.AddWorker("b");
  for (int i = 0; i < 10; ++i) {
    worker.prepare_error = i % 3 == 2 ? "" : "no space left on device";
    h.Submit(MakeSpec(1, 1));
  }
  EXPECT_FALSE(h.node(worker).quarantined());
}

TEST_F(QuarantineTest, AUsersProgramsCountOnceAgainstANodeThatLacksThem) {
  FakeWorker& bad = h.AddWorker("a");
  FakeWorker& good = h.AddWorker("b");
  bad.prepare_error = "./train: not found";
  bad.bad_command = true;
  good.prepare_error = bad.prepare_error;
  good.bad_command = true;
  const auto submit = [&](const std::string& user) {
    v1::StateEvent event;
    *event.mutable_submit_job()->mutable_spec() = MakeSpec(1, 1);
    event.mutable_submit_job()->set_request_id(user + std::to_string(++requests_));
    event.mutable_caller()->set_user(user);
    h.Call(event);
  };
  for (const char* const user : {"ada", "bob", "cyd", "dan"}) submit(user);
  EXPECT_FALSE(h.node(bad).quarantined()) << "the jobs are wrong";
  good.prepare_error.clear();
  for (int i = 0; i < 5; ++i) submit("ada");
  submit("bob");
  EXPECT_FALSE(h.node(bad).quarantined()) << "their programs may be on one host alone";
  submit("cyd");
  EXPECT_TRUE(h.node(bad).quarantined());
}

TEST_F(QuarantineTest, WhatLiesBeforeTheWindowDoesNotCount) {
  FakeWorker& bad = h.AddWorker("a");
  h.AddWorker("b");
  Flap(bad);
  Flap(bad);
  h.Advance(std::chrono::minutes(10));
  Flap(bad);
  Flap(bad);
  EXPECT_FALSE(h.node(bad).quarantined());
  Flap(bad);
  EXPECT_TRUE(h.node(bad).quarantined());
}

TEST_F(QuarantineTest, AnEventCountsOnceHoweverManyJobsItEnds) {
  FakeWorker& bad = h.AddWorker("a");
  v1::JobSpec spec = MakeSpec(1, 1);
  spec.set_max_restarts(9);
  const std::string one = h.Submit(spec), two = h.Submit(spec);
  Reboot(bad, /*ranks_survive=*/false);
  EXPECT_EQ(h.job(one).failure().cause(), v1::FAILURE_CAUSE_NODE_LOST);
  EXPECT_EQ(h.job(two).failure().cause(), v1::FAILURE_CAUSE_NODE_LOST);
  EXPECT_EQ(absences(bad), 1u);
  Flap(bad);
  EXPECT_EQ(absences(bad), 2u);
}

TEST_F(QuarantineTest, NeitherFaultsOfAJobNorAnAnnouncedStopCount) {
  FakeWorker& node = h.AddWorker("a");
  v1::JobSpec spec = MakeSpec(1, 1);
  spec.set_max_restarts(9);
  const std::string id = h.Submit(spec);
  h.Say(node, node.Exit(id, 0, 1));
  ASSERT_EQ(h.job(id).restarts(), 1u);
  for (int i = 0; i < 3; ++i) {
    h.Say(node, {node.Goodbye()});
    Reboot(node, /*ranks_survive=*/false);
  }
  EXPECT_EQ(absences(node), 0u);
}

TEST_F(QuarantineTest, HalfOfTheNodesStay) {
  FakeWorker& a = h.AddWorker("a");
  for (int i = 0; i < 4; ++i) Flap(a);
  EXPECT_FALSE(h.node(a).quarantined()) << "it is alone";
  FakeWorker& b = h.AddWorker("b");
  for (int i = 0; i < 4; ++i) Flap(b);
  EXPECT_TRUE(h.node(b).quarantined());
  Flap(a);
  EXPECT_FALSE(h.node(a).quarantined());
}

TEST_F(QuarantineTest, APersonsDrainTakesItsPlace) {
  FakeWorker& bad = h.AddWorker("a");
  h.AddWorker("b");
  for (int i = 0; i < 3; ++i) Flap(bad);
  ASSERT_TRUE(h.node(bad).quarantined());
  h.Call(Drain());
  EXPECT_TRUE(h.node(bad).drained());
  EXPECT_FALSE(h.node(bad).quarantined());
  EXPECT_EQ(h.node(bad).drained_because(), "drained by a client");
}

// A host that never comes back, with ranks that never said how they ended.
class DeadNodeTest : public ::testing::Test {
 protected:
  FakeWorker& Add(std::chrono::nanoseconds fence_after) {
    FakeWorker::Options options;
    options.name = "dead";
    options.fence_after = fence_after;
    return h.AddWorkerWith(std::move(options));
  }
  // Its job has failed with it.
  void Die(FakeWorker& worker) {
    id_ = h.Submit(MakeSpec(1, 2));
    worker.deaf = true;
    h.Disconnect(worker);
    h.Advance(seconds(6));
    ASSERT_EQ(h.state(id_), v1::JOB_STATE_FAILED);
    ASSERT_EQ(h.node(worker).slots_used(), 2u) << "its ranks may compute";
  }
  absl::Status Remove(bool gone = false) {
    v1::StateEvent event;
    event.mutable_remove_node()->set_node("dead");
    event.mutable_remove_node()->set_gone(gone);
    return h.answer(h.Call(std::move(event))).status;
  }
  size_t nodes() { return h.machine().nodes().all().size(); }

  Harness h;
  std::string id_;
};

TEST_F(DeadNodeTest, IsRemovedOnceItsFenceTimeIsOver) {
  Die(Add(seconds(20)));
  const absl::Status refused = Remove();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("may still run ranks of " + id_));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--gone"));
  h.Advance(seconds(15));
  EXPECT_TRUE(Remove().ok());
  EXPECT_EQ(nodes(), 0u);
  EXPECT_TRUE(h.HasEvent("RanksGivenUp"));
  h.StartCoordinator();
  EXPECT_EQ(nodes(), 0u);
}

TEST_F(DeadNodeTest, IsRemovedAtOnceOnAPersonsWord) {
  Die(Add(seconds(300)));
  EXPECT_TRUE(Remove(/*gone=*/true).ok());
  EXPECT_EQ(nodes(), 0u);
}

TEST_F(DeadNodeTest, WithoutAFenceTimeNeedsAPersonsWord) {
  h.retention.mutable_lost_node_age()->set_seconds(60);
  h.StartCoordinator();
  Die(Add(seconds(0)));
  h.Advance(std::chrono::hours(1));
  EXPECT_EQ(nodes(), 1u);
  EXPECT_THAT(std::string(Remove().message()), HasSubstr("promised no fence time"));
  EXPECT_TRUE(Remove(/*gone=*/true).ok());
}

TEST_F(DeadNodeTest, GoesAtItsAgeAndItsEndedJobsWithIt) {
  h.retention.mutable_lost_node_age()->set_seconds(60);
  *h.retention.mutable_ended_job_age() = ToProtoDuration(seconds(30));
  h.StartCoordinator();
  Die(Add(seconds(20)));
  h.Advance(seconds(45));
  EXPECT_EQ(h.machine().jobs().size(), 1u) << "its ranks are not accounted for";
  // It is looked at once a minute.
  h.Advance(seconds(90));
  EXPECT_EQ(nodes(), 0u);
  EXPECT_EQ(h.machine().jobs().size(), 0u);
}

TEST_F(DeadNodeTest, IsNotForgottenBeforeItsFenceTimeHoweverOldItIs) {
  h.retention.mutable_lost_node_age()->set_seconds(10);
  h.StartCoordinator();
  Die(Add(seconds(120)));
  h.Advance(seconds(100));
  EXPECT_EQ(nodes(), 1u);
  h.Advance(seconds(40));
  EXPECT_EQ(nodes(), 0u);
}

// Its processes have slept in the kernel all the while: what they hold is given to nobody.
TEST_F(DeadNodeTest, ThatReturnsWithRanksTakesNothingNewUntilTheyAreGone) {
  FakeWorker& worker = Add(seconds(20));
  Die(worker);
  ASSERT_TRUE(Remove(/*gone=*/true).ok());
  worker.deaf = false;
  worker.forgets = false;
  h.Connect(worker);
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_DRAINING);
  EXPECT_THAT(h.node(worker).drain_reason(), HasSubstr(id_));
  const std::string next = h.Submit(MakeSpec(1, 8));
  EXPECT_EQ(h.state(next), v1::JOB_STATE_QUEUED);
  h.StartCoordinator();
  h.Connect(worker);
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_DRAINING);
  worker.forgets = true;
  const v1::OpenSessionResponse forget = worker.received.back();
  ASSERT_TRUE(forget.has_forget());
  h.Say(worker, worker.OnMessage(forget));
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_HEALTHY);
  EXPECT_EQ(h.state(next), v1::JOB_STATE_RUNNING);
}

TEST(HostHealthTest, AHostWithAProblemTakesNothingNewAndKeepsItsRanks) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  const std::string running = h.Submit(MakeSpec(1, 1));
  worker.problems = {"less than 32.0 MiB free in /var/lib/meshrun-worker"};
  h.Say(worker, {worker.HealthReport()});
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_UNHEALTHY);
  EXPECT_THAT(h.node(worker).problems(), ::testing::ElementsAreArray(worker.problems));
  const std::string waiting = h.Submit(MakeSpec(1, 1));
  EXPECT_EQ(h.state(waiting), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(h.job(waiting).reason(), HasSubstr("1 that is unhealthy does not count"));
  EXPECT_EQ(h.state(running), v1::JOB_STATE_RUNNING);
  // What was found lasts over a restart of the coordinator, and is what Hello says then.
  h.StartCoordinator();
  EXPECT_EQ(h.node(worker).problems_size(), 1);
  h.Connect(worker);
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_UNHEALTHY);
  EXPECT_EQ(h.state(waiting), v1::JOB_STATE_QUEUED);
  worker.problems.clear();
  h.Say(worker, {worker.HealthReport()});
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_HEALTHY);
  EXPECT_EQ(h.state(waiting), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(h.HasEvent("NodeUnhealthy"));
  EXPECT_TRUE(h.HasEvent("NodeHealthy"));
}

TEST(HostHealthTest, AWorkerThatStopsIsDrainingWhateverItsHealth) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  worker.problems = {"GPU 3 does not answer"};
  worker.draining = true;
  h.Say(worker, {worker.HealthReport(), worker.Heartbeat()});
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_DRAINING);
}

TEST(HostHealthTest, ProblemsAreBounded) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  std::string two_bytes_each = "!";
  for (int i = 0; i < 5000; ++i) two_bytes_each += "é";
  worker.problems.assign(100, two_bytes_each);
  h.Say(worker, {worker.HealthReport()});
  ASSERT_EQ(h.node(worker).problems_size(), 16);
  EXPECT_EQ(h.node(worker).problems(0), two_bytes_each.substr(0, 999));
}

TEST(LogsRemovedTest, IsAnEventOfTheNodeThatNamesUserAndJob) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  v1::OpenSessionRequest message = worker.Heartbeat();
  v1::LogsRemoved& removed = *message.mutable_logs_removed();
  removed.set_submitter("bob");
  removed.set_job_id(std::string(10'000, 'x'));
  removed.set_generations(3);
  removed.set_bytes(5 << 20);
  removed.set_keep_bytes(4 << 20);
  h.Say(worker, {message});
  v1::StateEvent event;
  event.mutable_describe_cluster()->set_max_events(1);
  const auto events = h.answer(h.Call(event)).As<v1::DescribeClusterResponse>().events();
  ASSERT_EQ(events.size(), 1);
  EXPECT_EQ(events[0].kind(), "LogsRemoved");
  EXPECT_EQ(events[0].message(),
            "node1 has removed logs of 3 generations of bob (5.0 MiB), most of them of job " +
                std::string(200, 'x') +
                ": those of ended jobs took more than 4.0 MiB there, and this user's the most");
}

TEST(NodeTableTest, AReplacedNodeDoesNotStayForever) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  h.Disconnect(worker);
  h.Advance(seconds(5));
  v1::OpenSessionRequest hello = worker.Hello();
  hello.mutable_hello()->set_node_id("fresh");
  v1::StateEvent event;
  event.mutable_session_message()->set_session_id(999);
  *event.mutable_session_message()->mutable_message() = hello;
  h.Call(event);
  EXPECT_EQ(h.machine().nodes().all().size(), 1u);
}

}  // namespace
}  // namespace meshrun::coordinator::testing
