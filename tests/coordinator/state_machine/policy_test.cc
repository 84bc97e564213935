// What users may have: the policy's defaults and limits, quotas, accounts and partitions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "coordinator/policy_file.h"
#include "core/proto_time.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

v1::Policy PolicyOf(const std::string& yaml) {
  auto policy = ParsePolicy("policy.yaml", yaml);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return policy.ok() ? *policy : v1::Policy();
}

// --- the file ---

TEST(PolicyFileTest, TheExampleOfTheHeaderIsRead) {
  const v1::Policy policy = PolicyOf(R"(
limits:
  kill_grace: {default: 5s, max: 10m}
  time_limit: {default: 24h, max: 168h}
  max_restarts: {default: 0, max: 20}
  log_bytes: {default: 100M, max: 1G}
  ranks: 512
  queued_jobs: 1000
  running_jobs: 50
  running_ranks: 1024
  running_gpus: 16
users:
  ada: {weight: 2, account: physics, limits: {running_jobs: 100}}
accounts:
  physics: {users: [ada, bob], limits: {running_gpus: 32}}
partitions:
  gpu: {nodes: [gpu], accounts: [physics], limits: {time_limit: 12h}}
  cpu: {nodes: ["!gpu"], default: true}
)");
  EXPECT_EQ(FromProto(policy.limits().default_time_limit()), hours(24));
  EXPECT_EQ(FromProto(policy.limits().kill_grace()), minutes(10));
  EXPECT_EQ(policy.limits().log_bytes(), uint64_t{1} << 30);
  EXPECT_EQ(policy.limits().running_gpus(), 16u);
  EXPECT_EQ(policy.users().at("ada").weight(), 2);
  EXPECT_THAT(policy.accounts().at("physics").users(), ElementsAre("ada", "bob"));
  EXPECT_EQ(FromProto(policy.partitions().at("gpu").limits().time_limit()), hours(12));
  EXPECT_EQ(policy.default_partition(), "cpu");
  EXPECT_TRUE(ParsePolicy("p", "").ok());
  EXPECT_TRUE(ParsePolicy("p", "limits:\n").ok());
}

TEST(PolicyFileTest, WhatIsWrongIsNamedWithItsPlace) {
  for (const auto& [yaml, what] : std::vector<std::pair<std::string, std::string>>{
           {"limit: {}", "p.yaml:1:1: : no such field 'limit': did you mean 'limits'?"},
           {"limits: {ranks: many}", "p.yaml:1:17: limits.ranks: write a whole number"},
           {"limits: {ranks: -1}", "limits.ranks: write a whole number"},
           {"limits: {time_limit: {maximum: 1h}}", "limits.time_limit: no such field 'maximum'"},
           {"limits: {time_limit: soon}", "limits.time_limit: 'soon' is not a duration"},
           {"users: [ada]", "users: write a map of names"},
           {"users: {ada: {weight: 0}}", "users.ada.weight: write a number from 0.001"},
           {"users: {ada: {weight: .nan}}", "users.ada.weight: write a number from 0.001"},
           {"users: {ada: {account: physics}}", "there is no account 'physics' below accounts"},
           {"partitions: {gpu: {nodes: gpu}}", "partitions.gpu.nodes: write a list"},
           {"partitions: {gpu: {nodes: ['a=b=']}}", "partitions.gpu.nodes"},
           {"partitions: {a: {default: true}, b: {default: true}}", "a is the default already"},
           {"partitions: {a: {accounts: [x]}}", "there is no account 'x'"},
           {"partitions: {a: {users: [eve]}}", "could use its nodes: give another one"},
           {"accounts: {x: {users: []}}", "the list is empty: leave it out for everybody"},
           {"users: {ada: {account: x}}\naccounts: {x: {users: [bob]}}",
            "users.ada: the account 'x' does not have ada among its users"},
           {"limits: {time_limit: 0s}", "limits.time_limit: write a time above 0"},
           {"limits: {kill_grace: {default: 2m, max: 1m}}", "the default is more than the most"},
           {"limits: {ranks: 1, ranks: 2}", "ranks: set before, at line 1"},
           {"limits: {}\n---\nlimits: {}", "a policy is one document"},
           {"limits: {", "p.yaml:"},
           {"- 1", "write a map of limits, users, accounts, partitions, private_jobs"}}) {
    const auto policy = ParsePolicy("p.yaml", yaml);
    ASSERT_TRUE(absl::IsInvalidArgument(policy.status())) << yaml;
    EXPECT_THAT(Message(policy.status()), HasSubstr(what)) << yaml;
  }
}

// --- what it does ---

class PolicyTest : public ::testing::Test {
 protected:
  void Set(const std::string& yaml) {
    v1::StateEvent event;
    *event.mutable_set_policy() = PolicyOf(yaml);
    h.Call(std::move(event));
    // The policy of the coordinators that are started from now on.
    h.policy = PolicyOf(yaml);
  }
  std::string Refusal(const std::string& user, const v1::JobSpec& spec) {
    const Harness::Answer& answer = h.TrySubmitAs(user, spec);
    EXPECT_FALSE(answer.status.ok());
    code_ = answer.status.code();
    return Message(answer.status);
  }
  const v1::JobSpec& SpecOf(const std::string& id) { return h.job(id).spec(); }
  v1::DescribeLimitsResponse LimitsOf(const std::string& user) {
    v1::StateEvent event;
    event.mutable_caller()->set_user(user);
    event.mutable_describe_limits();
    return h.answer(h.Call(std::move(event))).As<v1::DescribeLimitsResponse>();
  }
  static v1::JobSpec Of(v1::JobSpec spec, const std::string& account,
                        const std::string& partition = "") {
    spec.set_account(account);
    spec.set_partition(partition);
    return spec;
  }
  void End(const std::string& id) { h.Say(*node, node->ExitAll(id, 0)); }

  Harness h;
  FakeWorker* node = &h.AddWorker("node1", 8);
  absl::StatusCode code_ = absl::StatusCode::kOk;
};

TEST_F(PolicyTest, WithoutOneAGraceHasAnEnd) {
  v1::JobSpec spec = MakeSpec(1, 1);
  *spec.mutable_kill_grace() = ToProtoDuration(hours(8760));
  *spec.mutable_time_limit() = ToProtoDuration(seconds(5));
  EXPECT_THAT(Refusal("ada", spec), HasSubstr("kill_grace: 365d0h is more than 1h"));
  EXPECT_EQ(code_, absl::StatusCode::kInvalidArgument);
  *spec.mutable_kill_grace() = ToProtoDuration(hours(1));
  EXPECT_TRUE(h.TrySubmitAs("ada", spec).status.ok());
}

// It was submitted before there was a limit.
TEST_F(PolicyTest, ATimeLimitHasAHardEnd) {
  v1::JobSpec spec = MakeSpec(1, 1);
  *spec.mutable_kill_grace() = ToProtoDuration(minutes(50));
  *spec.mutable_time_limit() = ToProtoDuration(seconds(5));
  node->stubborn = true;
  const std::string id = h.SubmitAs("ada", spec);
  Set("limits: {kill_grace: 10s}");
  h.Advance(seconds(6));
  const auto stop = std::find_if(node->received.begin(), node->received.end(),
                                 [](const auto& message) { return message.has_stop(); });
  ASSERT_NE(stop, node->received.end());
  EXPECT_EQ(FromProto(stop->stop().grace()), seconds(10));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
}

TEST_F(PolicyTest, WhoAsksForALongerGraceIsRefused) {
  Set("limits: {kill_grace: 1m}");
  v1::JobSpec spec = MakeSpec(1, 1);
  *spec.mutable_kill_grace() = ToProtoDuration(minutes(2));
  EXPECT_THAT(Refusal("ada", spec),
              HasSubstr("kill_grace: 2m is more than 1m, the most for a job of user ada"));
  *spec.mutable_kill_grace() = ToProtoDuration(minutes(1));
  EXPECT_TRUE(h.TrySubmitAs("ada", spec).status.ok());
}

TEST_F(PolicyTest, DefaultsAreFilledInAndHeldToTheMost) {
  Set(R"(
limits:
  time_limit: {default: 24h, max: 48h}
  kill_grace: {default: 20s, max: 1m}
  max_restarts: {default: 3, max: 5}
  log_bytes: {max: 1G}
partitions:
  short: {limits: {time_limit: 1h}}
  usual: {default: true}
)");
  const v1::JobSpec& usual = SpecOf(h.SubmitAs("ada", MakeSpec(1, 1)));
  EXPECT_EQ(FromProto(usual.time_limit()), hours(24));
  EXPECT_EQ(FromProto(usual.kill_grace()), seconds(20));
  EXPECT_EQ(usual.max_restarts(), 3u);
  EXPECT_EQ(usual.log_bytes(), uint64_t{1} << 30);
  const std::string shorter = h.SubmitAs("ada", Of(MakeSpec(1, 1), "", "short"));
  EXPECT_EQ(FromProto(SpecOf(shorter).time_limit()), hours(1)) << "nobody asked for 24 h";
  v1::JobSpec asks = Of(MakeSpec(1, 1), "", "short");
  *asks.mutable_time_limit() = ToProtoDuration(hours(2));
  EXPECT_THAT(Refusal("ada", asks),
              HasSubstr("time_limit: 2h is more than 1h, the most for a job of partition short"));
  asks = MakeSpec(1, 1);
  asks.set_max_restarts(0);
  EXPECT_EQ(SpecOf(h.SubmitAs("ada", asks)).max_restarts(), 0u) << "it must not run twice";
  asks.set_max_restarts(6);
  EXPECT_THAT(Refusal("ada", asks), HasSubstr("max_restarts: 6 is more than 5"));
}

TEST_F(PolicyTest, ADefaultTimeLimitLetsASmallJobStartBeforeALargeOneThatWaits) {
  v1::JobSpec running = MakeSpec(1, 4);
  *running.mutable_time_limit() = ToProtoDuration(hours(1));
  h.SubmitAs("ada", running);
  const std::string large = h.SubmitAs("ada", MakeSpec(1, 8));
  ASSERT_EQ(h.state(large), v1::JOB_STATE_QUEUED);
  const std::string endless = h.SubmitAs("ada", MakeSpec(1, 2));
  EXPECT_EQ(h.state(endless), v1::JOB_STATE_QUEUED);
  Set("limits: {time_limit: {default: 30m}}");
  const std::string small = h.SubmitAs("ada", MakeSpec(1, 2));
  EXPECT_EQ(h.state(small), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(h.HasEvent("JobBackfilled"));
  EXPECT_EQ(h.state(endless), v1::JOB_STATE_QUEUED) << "it was submitted without a default";
  // A default that is too long helps nobody.
  Set("limits: {time_limit: {default: 2h}}");
  EXPECT_EQ(h.state(h.SubmitAs("ada", MakeSpec(1, 2))), v1::JOB_STATE_QUEUED);
  h.Advance(hours(1) + minutes(1));
  EXPECT_EQ(h.state(large), v1::JOB_STATE_RUNNING) << "nothing has delayed it";
}

TEST_F(PolicyTest, AUsersOwnLimitsReplaceThoseOfAll) {
  Set(R"(
limits: {ranks: 4, time_limit: {default: 90m, max: 2h}}
users: {ada: {limits: {ranks: 8, time_limit: {default: 30s}}}}
)");
  EXPECT_THAT(Refusal("bob", MakeSpec(1, 5)),
              HasSubstr("ranks: 5 is more than 4, the most for a job of user bob"));
  const std::string id = h.SubmitAs("ada", MakeSpec(1, 8));
  EXPECT_EQ(FromProto(SpecOf(id).time_limit()), seconds(30)) << "not a mixture of two times";
  EXPECT_THAT(Refusal("ada", MakeSpec(3, 3)), HasSubstr("9 is more than 8"));
}

TEST_F(PolicyTest, QuotasHoldUpOnlyWhoIsOverThem) {
  Set("limits: {running_jobs: 1, queued_jobs: 2}");
  const std::string first = h.SubmitAs("bob", MakeSpec(1, 2));
  const std::string second = h.SubmitAs("bob", MakeSpec(1, 2));
  const std::string third = h.SubmitAs("bob", MakeSpec(1, 2));
  EXPECT_EQ(h.state(second), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(h.job(second).reason(), HasSubstr("user bob runs 1 jobs, and its limit is 1"));
  EXPECT_THAT(Refusal("bob", MakeSpec(1, 2)), HasSubstr("user bob has 2 jobs in the queue"));
  EXPECT_EQ(code_, absl::StatusCode::kResourceExhausted);
  const std::string adas = h.SubmitAs("ada", MakeSpec(1, 2));
  EXPECT_EQ(h.state(adas), v1::JOB_STATE_RUNNING);
  End(first);
  EXPECT_EQ(h.state(second), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.state(third), v1::JOB_STATE_QUEUED);
  EXPECT_TRUE(h.TrySubmitAs("bob", MakeSpec(1, 2)).status.ok());
  Set("limits: {running_jobs: 9}");
  EXPECT_EQ(h.state(third), v1::JOB_STATE_RUNNING) << "the new policy lets it start";
}

TEST_F(PolicyTest, RanksOfAllJobsAreCounted) {
  Set("limits: {running_ranks: 4}");
  h.SubmitAs("ada", MakeSpec(1, 3));
  const std::string two = h.SubmitAs("ada", MakeSpec(1, 2));
  EXPECT_THAT(h.job(two).reason(),
              HasSubstr("runs 3 ranks, and 2 more would be over its limit of 4"));
  const std::string one = h.SubmitAs("ada", MakeSpec(1, 1));
  EXPECT_EQ(h.state(one), v1::JOB_STATE_RUNNING) << "it is not behind the one that is over";
  EXPECT_THAT(Refusal("ada", MakeSpec(1, 5)), HasSubstr("ranks: 5 is more than 4"));
}

TEST_F(PolicyTest, AnElasticJobStartsOnAsManyNodesAsItsQuotaLeaves) {
  h.AddWorker("node2", 8);
  h.AddWorker("node3", 8);
  h.Advance(seconds(5));
  Set("limits: {running_ranks: 5}");
  v1::JobSpec spec = MakeSpec(1, 2);
  spec.set_max_nodes(3);
  spec.set_growth(v1::GROWTH_AT_ONCE);
  const std::string id = h.SubmitAs("ada", spec);
  h.Advance(seconds(5));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).world_size(), 4u);
  h.Advance(seconds(60));
  EXPECT_EQ(h.job(id).world_size(), 4u) << "and does not grow beyond it";
  EXPECT_EQ(h.job(id).generation(), 1u);
}

// It was the head of the queue, and others made room for a job that then did not start.
TEST_F(PolicyTest, AJobOverItsQuotaIsNoHeadAndNobodyMakesRoomForIt) {
  h.AddWorker("node2", 8);
  Set("limits: {running_jobs: 1}");
  v1::JobSpec low = MakeSpec(1, 8);
  low.set_priority(-1);
  low.set_max_restarts(3);
  const std::string bobs = h.SubmitAs("bob", MakeSpec(1, 8));
  const std::string eves = h.SubmitAs("eve", low);
  ASSERT_EQ(h.state(eves), v1::JOB_STATE_RUNNING);
  const std::string large = h.SubmitAs("bob", MakeSpec(2, 8));
  EXPECT_EQ(h.state(eves), v1::JOB_STATE_RUNNING);
  EXPECT_FALSE(h.HasEvent("JobPreempted"));
  h.Cancel(eves);
  const std::string adas = h.SubmitAs("ada", MakeSpec(1, 8));
  EXPECT_EQ(h.state(adas), v1::JOB_STATE_RUNNING) << h.job(adas).reason();
  EXPECT_THAT(h.job(large).reason(), HasSubstr("user bob runs 1 jobs"));
  // Once it may start, it says what it waits for.
  End(bobs);
  EXPECT_THAT(h.job(large).reason(), HasSubstr("needs 2 nodes")) << h.job(large).reason();
}

TEST_F(PolicyTest, AJobThatNodesAloneMakeTooLargeIsHeldToTheMost) {
  h.AddWorker("node2", 8);
  h.Advance(seconds(5));
  Set("limits: {ranks: 4}");
  v1::JobSpec spec = MakeSpec(1, 3);
  spec.set_max_nodes(2);
  const std::string id = h.SubmitAs("ada", spec);
  h.Advance(seconds(5));
  EXPECT_EQ(h.job(id).world_size(), 3u) << h.job(id).reason();
  spec = MakeSpec(1, 1);
  spec.mutable_procs_per_node()->set_cpu(true);
  const auto& answer = h.TrySubmitAs("ada", spec).As<v1::SubmitJobResponse>();
  EXPECT_THAT(answer.too_big(), HasSubstr("user ada may have 4 ranks in one job"));
}

TEST_F(PolicyTest, AJobThatLivesOnDoesNotGrowBeyondItsQuota) {
  FakeWorker& second = h.AddWorker("node2", 8);
  h.AddWorker("node3", 8);
  h.AddWorker("node4", 8);
  h.Advance(seconds(5));
  Set("limits: {running_ranks: 5}");
  v1::JobSpec spec = MakeSpec(1, 2);
  spec.set_max_nodes(3);
  spec.set_max_restarts(5);
  const std::string id = h.SubmitAs("ada", spec);
  h.Advance(seconds(5));
  ASSERT_EQ(h.job(id).world_size(), 4u);
  FakeWorker& member = second.Carries(id) ? second : *node;
  h.Disconnect(member);
  h.Advance(seconds(60));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_GT(h.job(id).generation(), 1u);
  EXPECT_LE(h.job(id).world_size(), 4u);
}

TEST_F(PolicyTest, NoJobWaitsBehindItself) {
  Set("accounts: {physics: {limits: {running_ranks: 6}}}");
  h.SubmitAs("bob", Of(MakeSpec(1, 3), "physics"));
  const std::string first = h.SubmitAs("ada", Of(MakeSpec(1, 6), "physics"));
  const std::string second = h.SubmitAs("ada", Of(MakeSpec(1, 6), "physics"));
  for (const std::string& id : {first, second})
    EXPECT_THAT(h.job(id).reason(), HasSubstr("account physics runs 3 ranks, and 6 more"));
}

// Small jobs would go past it for ever.
TEST_F(PolicyTest, InAnAccountTheFirstThatItsQuotaKeepsBackIsNext) {
  Set("accounts: {physics: {limits: {running_ranks: 6}}}");
  const std::string running = h.SubmitAs("bob", Of(MakeSpec(1, 3), "physics"));
  const std::string large = h.SubmitAs("ada", Of(MakeSpec(1, 6), "physics"));
  const std::string small = h.SubmitAs("bob", Of(MakeSpec(1, 1), "physics"));
  EXPECT_EQ(h.job(small).reason(),
            "behind job " + large + ", for which account physics has no room");
  EXPECT_EQ(h.state(h.SubmitAs("eve", MakeSpec(1, 1))), v1::JOB_STATE_RUNNING);
  End(running);
  EXPECT_EQ(h.state(large), v1::JOB_STATE_RUNNING) << h.job(large).reason();
  End(large);
  EXPECT_EQ(h.state(small), v1::JOB_STATE_RUNNING) << h.job(small).reason();
}

TEST_F(PolicyTest, AccountsAreSharedByTheirUsers) {
  Set(R"(
users: {ada: {account: physics}}
accounts:
  physics: {users: [ada, bob], limits: {running_ranks: 4}}
  biology: {users: [eve]}
)");
  const std::string adas = h.SubmitAs("ada", MakeSpec(1, 3));
  EXPECT_EQ(SpecOf(adas).account(), "physics");
  const std::string bobs = h.SubmitAs("bob", Of(MakeSpec(1, 2), "physics"));
  EXPECT_THAT(h.job(bobs).reason(), HasSubstr("account physics runs 3 ranks"));
  EXPECT_EQ(h.state(h.SubmitAs("bob", MakeSpec(1, 2))), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(Refusal("bob", Of(MakeSpec(1, 1), "biology")),
              HasSubstr("account: bob may not use 'biology'"));
  EXPECT_EQ(code_, absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(Refusal("bob", Of(MakeSpec(1, 1), "chemistry")),
              HasSubstr("there is no 'chemistry': there are biology, physics"));
}

TEST_F(PolicyTest, PartitionsHaveNodesAndUsers) {
  FakeWorker::Options fast;
  fast.name = "fast1";
  fast.slots = 8;
  fast.labels = {{"fast", ""}};
  FakeWorker& fast1 = h.AddWorkerWith(fast);
  Set(R"(
accounts: {physics: {}}
partitions:
  fast: {nodes: [fast], users: [eve], accounts: [physics], limits: {running_jobs: 1}}
  rest: {nodes: ["!fast"], default: true}
)");
  const std::string usual = h.SubmitAs("ada", MakeSpec(1, 1));
  EXPECT_EQ(SpecOf(usual).partition(), "rest");
  EXPECT_TRUE(node->Carries(usual));
  EXPECT_THAT(Refusal("ada", Of(MakeSpec(1, 1), "", "fast")),
              HasSubstr("partition: ada may not use 'fast'"));
  const std::string adas = h.SubmitAs("ada", Of(MakeSpec(1, 1), "physics", "fast"));
  EXPECT_TRUE(fast1.Carries(adas)) << h.job(adas).reason();
  const std::string eves = h.SubmitAs("eve", Of(MakeSpec(1, 1), "", "fast"));
  EXPECT_THAT(h.job(eves).reason(), HasSubstr("partition fast runs 1 jobs, and its limit is 1"));
  EXPECT_THAT(Refusal("ada", Of(MakeSpec(1, 1), "", "slow")),
              HasSubstr("partition: there is no 'slow': there are fast, rest"));
}

TEST_F(PolicyTest, AWeightIsAShare) {
  Set("users: {ada: {weight: 3}}");
  const std::string running = h.SubmitAs("eve", MakeSpec(1, 8));
  std::map<std::string, std::string> owners;
  for (int i = 0; i < 40; ++i) {
    for (const char* const user : {"ada", "bob"}) owners[h.SubmitAs(user, MakeSpec(1, 8))] = user;
  }
  std::map<std::string, int> started;
  std::string current = running;
  for (int i = 0; i < 40; ++i) {
    End(current);
    for (const auto& [id, owner] : owners) {
      if (h.state(id) == v1::JOB_STATE_RUNNING) current = id;
    }
    ++started[owners[current]];
  }
  EXPECT_EQ(started["ada"], 30);
  EXPECT_EQ(started["bob"], 10);
}

TEST_F(PolicyTest, LimitsAreToldWithWhatIsUsed) {
  Set(R"(
limits: {running_jobs: 5}
users: {ada: {account: physics, weight: 2}}
accounts: {physics: {users: [ada]}, biology: {users: [bob]}}
partitions: {fast: {accounts: [physics]}, rest: {default: true}}
)");
  h.SubmitAs("ada", MakeSpec(1, 3));
  h.SubmitAs("ada", MakeSpec(1, 8));
  const v1::DescribeLimitsResponse limits = LimitsOf("ada");
  std::vector<std::string> names;
  for (const v1::LimitScope& scope : limits.scopes()) names.push_back(scope.name());
  EXPECT_THAT(names, ElementsAre("ada", "physics", "fast", "rest"));
  const v1::LimitScope& own = limits.scopes(0);
  EXPECT_EQ(own.running_jobs(), 1u);
  EXPECT_EQ(own.queued_jobs(), 1u);
  EXPECT_EQ(own.running_ranks(), 3u);
  EXPECT_EQ(own.limits().running_jobs(), 5u);
  EXPECT_EQ(own.weight(), 2);
  EXPECT_EQ(limits.default_account(), "physics");
  EXPECT_EQ(limits.default_partition(), "rest");
  EXPECT_EQ(LimitsOf("bob").scopes_size(), 3);
}

TEST_F(PolicyTest, ARestartCountsWhatRuns) {
  Set("limits: {running_jobs: 1}");
  const std::string first = h.SubmitAs("ada", MakeSpec(1, 1));
  const std::string second = h.SubmitAs("ada", MakeSpec(1, 1));
  h.StartCoordinator();
  h.Connect(*node);
  EXPECT_EQ(h.state(first), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.state(second), v1::JOB_STATE_QUEUED);
  End(first);
  EXPECT_EQ(h.state(second), v1::JOB_STATE_RUNNING);
}

TEST(PolicyFileTest, OneThatIsWrongLaterLeavesWhatWasReadBefore) {
  const std::string path = ::testing::TempDir() + "/policy.yaml";
  std::vector<std::string> said;
  const PolicyFile::Note note = [&](const std::string& kind, const std::string& message) {
    said.push_back(kind + ": " + message);
  };
  const auto write = [&](const char* text) { std::ofstream(path) << text; };
  PolicyFile file(path);
  write("limits: {rank: 7}");
  EXPECT_EQ(file.Read().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file.ReadOrKeep(note).status().code(), absl::StatusCode::kInvalidArgument)
      << "nothing was read before";
  EXPECT_THAT(said, ElementsAre());
  write("limits: {ranks: 7}");
  ASSERT_EQ(file.Read()->limits().ranks(), 7u);
  write("limits: {rank: 8}");
  EXPECT_FALSE(file.Read().ok());
  EXPECT_EQ(file.ReadOrKeep(note)->limits().ranks(), 7u);
  EXPECT_THAT(said, ElementsAre(HasSubstr("PolicyRefused: the policy stays as it was: ")));
  write("limits: {ranks: 9}");
  EXPECT_EQ(file.ReadOrKeep(note)->limits().ranks(), 9u);
  EXPECT_EQ(said.size(), 1u);
}

}  // namespace
}  // namespace meshrun::coordinator::testing
