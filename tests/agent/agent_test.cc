// The agent against a daemon that the test plays, over a real Unix socket.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "agent/daemon_agent.h"
#include "core/os/fd.h"
#include "core/wait_messages.h"
#include "tests/agent/support/fake_daemon.h"
#include "tests/worker/support/processes.h"

namespace meshrun::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Milliseconds kLong(60000);

class AgentTest : public ::testing::Test {
 protected:
  AgentTest() { Serve(); }
  ~AgentTest() override {
    agent_.reset();
    EndServer();
  }
  void Serve() {
    server_ = agent::Serve(daemon_, "unix:" + (directory_ / "agent.sock"));
    ASSERT_NE(server_, nullptr);
  }
  void EndServer() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
  }
  AgentEnvironment Environment() {
    return {.address = "unix:" + (directory_ / "agent.sock"),
            .job_id = "job",
            .generation = 2,
            .rank = 3,
            .token = kToken,
            .report_socket = directory_ / "r3.sock"};
  }
  Agent& Connect() {
    auto agent = DaemonAgent::Connect(Environment(), kLong);
    EXPECT_TRUE(agent.ok()) << agent.status();
    agent_ = *std::move(agent);
    return *agent_;
  }
  // A call whose attempts all fail until FailNext(0). It has made two of them.
  std::future<absl::Status> FailsAgainAndAgain(std::function<absl::Status()> call) {
    constexpr int kAll = 1 << 20;
    daemon_.FailNext(kAll);
    auto failing = std::async(std::launch::async, std::move(call));
    EXPECT_TRUE(testing::Eventually([&] { return daemon_.failures_left() <= kAll - 2; }));
    return failing;
  }

  testing::TemporaryDirectory directory_;
  FakeDaemon daemon_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Agent> agent_;
};

TEST_F(AgentTest, LearnsItsPlaceInTheGeneration) {
  const Assignment& place = Connect().assignment();
  EXPECT_EQ(place.job_id, "job");
  EXPECT_EQ(place.generation, 2u);
  EXPECT_EQ(place.rank, 3);
  EXPECT_EQ(place.world_size, 4);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_world_size, 2);
  EXPECT_EQ(place.node_rank, 1);
  EXPECT_EQ(place.node_count, 2);
  EXPECT_EQ(place.node_name, "b");
  EXPECT_EQ(place.master_addr, "10.0.0.1");
  EXPECT_EQ(place.master_port, 20007);
  ASSERT_EQ(place.mesh.size(), 1u);
  EXPECT_EQ(place.mesh[0].name, "dp");
}

TEST_F(AgentTest, OfAHostsAddressesTheFirstThatCanBeReachedIsItsAddress) {
  // No socket can be connected to the first.
  daemon_.addresses = {{"a", {"255.255.255.255", "127.0.0.2", "127.0.0.3"}}, {"b", {"node-b"}}};
  const auto world = Connect().World(kLong);
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_THAT(world->node_ranks, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(world->addresses, ElementsAre("127.0.0.2", "127.0.0.2", "node-b", "node-b"));
}

TEST_F(AgentTest, ConnectSaysWhatTheDaemonSays) {
  AgentEnvironment environment = Environment();
  environment.token = "guessed";
  EXPECT_EQ(DaemonAgent::Connect(environment, kLong).status().code(),
            absl::StatusCode::kUnauthenticated);
  environment = Environment();
  environment.rank = 9;
  EXPECT_EQ(DaemonAgent::Connect(environment, kLong).status().code(), absl::StatusCode::kNotFound);
  environment.address = "unix:" + (directory_ / "nobody.sock");
  const absl::Status nobody = DaemonAgent::Connect(environment, Milliseconds(50)).status();
  EXPECT_EQ(nobody.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(nobody.message()), HasSubstr("nobody.sock"));
}

TEST_F(AgentTest, StoreCallsSayWhatTheyMean) {
  Agent& agent = Connect();
  EXPECT_TRUE(agent.Set("a", std::string("1\0x", 3)).ok());
  EXPECT_EQ(*agent.Get("a", kLong), std::string("1\0x", 3));
  EXPECT_TRUE(agent.MultiSet({"b", "c"}, {"2", "3"}).ok());
  EXPECT_THAT(*agent.MultiGet({"c", "b"}, kLong, {}), ElementsAre("3", "2"));
  EXPECT_EQ(agent.MultiSet({"b"}, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*agent.Add("n", 5), 5);
  EXPECT_EQ(*agent.Add("n", -2), 3);
  EXPECT_TRUE(*agent.Check({"a", "b"}));
  EXPECT_FALSE(*agent.Check({"a", "z"}));
  EXPECT_EQ(*agent.CountKeys(), 4);
  EXPECT_TRUE(*agent.Delete("n"));
  EXPECT_FALSE(*agent.Delete("n"));
}

TEST_F(AgentTest, CompareSetOfAMissingKeyFollowsC10d) {
  Agent& agent = Connect();
  EXPECT_EQ(*agent.CompareSet("k", "something", "new"), "something");
  EXPECT_EQ(*agent.CompareSet("k", "", "new"), "new");
  EXPECT_EQ(*agent.CompareSet("k", "old", "newer"), "new");
  EXPECT_EQ(*agent.CompareSet("k", "new", "newer"), "newer");
}

TEST_F(AgentTest, AMissingKeyIsATimeoutThatNamesIt) {
  for (const Milliseconds timeout : {Milliseconds(0), Milliseconds(10)}) {
    const absl::Status status = Connect().Get("absent", timeout).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()), HasSubstr("absent"));
  }
}

TEST_F(AgentTest, ARetriedCallKeepsItsRequestIdAndCountsOnce) {
  Agent& agent = Connect();
  daemon_.FailNext(3);
  EXPECT_EQ(*agent.Add("n", 1), 1);
  const auto ids = daemon_.request_ids();
  ASSERT_EQ(ids.size(), 4u);
  EXPECT_THAT(ids, ::testing::Each(ids[0]));
  EXPECT_EQ(*agent.Add("n", 1), 2);
  EXPECT_NE(daemon_.request_ids().back(), ids[0]);
}

TEST_F(AgentTest, ADaemonThatIsStartedAgainIsFound) {
  Agent& agent = Connect();
  EndServer();
  std::thread restart([this] { Serve(); });
  EXPECT_TRUE(agent.Set("k", "v").ok());
  restart.join();
  EXPECT_EQ(*agent.Get("k", kLong), "v");
}

TEST_F(AgentTest, ACoordinatorThatStaysAwayIsUnavailable) {
  Agent& agent = Connect();
  daemon_.FailNext(1 << 20);
  EXPECT_EQ(agent.Get("k", Milliseconds(50)).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(AgentTest, BarrierNamesItsRankAndItsMembers) {
  Agent& agent = Connect();
  EXPECT_TRUE(agent.Barrier("world/0", {1, 3}, kLong).ok());
  EXPECT_EQ(daemon_.last_barrier().rank(), 3);
  EXPECT_THAT(daemon_.last_barrier().ranks(), ElementsAre(1, 3));
  EXPECT_EQ(agent.Barrier("broken", {}, kLong).code(), absl::StatusCode::kAborted);
}

TEST_F(AgentTest, DestroyingTheAgentCancelsCallsThatWait) {
  Agent& agent = Connect();
  auto waiting =
      std::async(std::launch::async, [&agent] { return agent.Barrier("never", {}, kLong); });
  ASSERT_TRUE(testing::Eventually([&] { return daemon_.last_barrier().name() == "never"; }));
  agent_.reset();
  EXPECT_EQ(waiting.get().code(), absl::StatusCode::kCancelled);
}

TEST_F(AgentTest, DestroyingTheAgentCancelsACallThatIsTriedAgain) {
  Agent& agent = Connect();
  std::future<absl::Status> waiting =
      FailsAgainAndAgain([&agent] { return agent.Get("k", kLong).status(); });
  agent_.reset();
  EXPECT_EQ(waiting.get().code(), absl::StatusCode::kCancelled);
}

TEST_F(AgentTest, ACallThatIsToldToStopEndsAtOnceAndAloneOfAll) {
  Agent& agent = Connect();
  std::stop_source stop;
  const auto multi_get = [&](const char* key) {
    return std::async(std::launch::async,
                      [&, key] { return agent.MultiGet({key}, kLong, stop.get_token()).status(); });
  };
  std::future<absl::Status> waits = multi_get("never");
  ASSERT_TRUE(testing::Eventually([&] { return daemon_.is_waited_for(); }));
  stop.request_stop();
  EXPECT_EQ(waits.get().code(), absl::StatusCode::kCancelled);
  // One that begins later, and one that is tried again and again.
  EXPECT_EQ(multi_get("never").get().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(agent.Set("there", "1").ok());
  stop = std::stop_source();
  waits = FailsAgainAndAgain(
      [&] { return agent.MultiGet({"there"}, kLong, stop.get_token()).status(); });
  stop.request_stop();
  EXPECT_EQ(waits.get().code(), absl::StatusCode::kCancelled);
  daemon_.FailNext(0);
  EXPECT_EQ(*agent.Get("there", kLong), "1");
}

TEST_F(AgentTest, OnStopIsCalledOnceWithTheReason) {
  std::promise<std::string> reason;
  Connect().OnStop([&](std::string text) { reason.set_value(std::move(text)); });
  daemon_.StopGeneration("rank 2 failed");
  EXPECT_EQ(reason.get_future().get(), "rank 2 failed");
}

TEST_F(AgentTest, OnStopIsNotCalledWhenTheGenerationJustEnds) {
  bool called = false;
  Connect().OnStop([&](std::string) { called = true; });
  daemon_.EndWatches();
  agent_.reset();
  EXPECT_FALSE(called);
}

TEST_F(AgentTest, NewsOfOtherRanksComeUntilTheAgentEnds) {
  std::mutex mu;
  std::vector<std::string> heard;
  const auto add = [&](std::string text) {
    std::lock_guard lock(mu);
    heard.push_back(std::move(text));
  };
  Connect().Watch({
      .on_lost = [&](int rank,
                     const std::string& reason) { add(fmt::format("lost {}: {}", rank, reason)); },
      .on_left = [&](int rank) { add(fmt::format("left {}", rank)); },
      .on_stopping = [&](const std::string& reason) { add("stopping: " + reason); },
      .on_verdict = [&](const WaitVerdict& verdict) { add("verdict: " + verdict.message); },
  });
  v1::PeerNews news;
  news.add_lost()->set_rank(1);
  news.mutable_lost(0)->set_reason("killed");
  news.add_left(2);
  daemon_.Tell(news);
  news.Clear();
  news.add_verdicts()->set_message("in vain");
  // A node that returns hears it again.
  for (int i = 0; i < 2; ++i) {
    v1::WaitVerdict& repeated = *news.add_verdicts();
    repeated.set_message("said twice");
    repeated.set_number(7);
  }
  daemon_.Tell(news);
  ASSERT_TRUE(testing::Eventually([&] {
    std::lock_guard lock(mu);
    return heard.size() == 4;
  }));
  EXPECT_THAT(heard,
              ElementsAre("lost 1: killed", "left 2", "verdict: in vain", "verdict: said twice"));
  daemon_.StopGeneration("rank 2 failed");
  EXPECT_TRUE(testing::Eventually([&] {
    std::lock_guard lock(mu);
    return heard.size() == 5 && heard.back() == "stopping: rank 2 failed";
  }));
  agent_.reset();
}

TEST_F(AgentTest, AVerdictIsToldToTheListenersOfItsTimeAlone) {
  Agent& agent = Connect();
  std::mutex mu;
  std::vector<std::string> heard;
  const auto listen = [&](const std::string& who) {
    agent.Watch({
        .on_lost = [](int, const std::string&) {},
        .on_left = [](int) {},
        .on_stopping = [](const std::string&) {},
        .on_verdict =
            [&, who](const WaitVerdict& verdict) {
              std::lock_guard lock(mu);
              heard.push_back(who + " hears " + verdict.message);
            },
    });
  };
  const auto tell = [&](uint64_t number) {
    v1::PeerNews news;
    news.add_verdicts()->set_number(number);
    news.mutable_verdicts(0)->set_message(std::to_string(number));
    daemon_.Tell(news);
  };
  const auto await = [&](size_t count) {
    return testing::Eventually([&] {
      std::lock_guard lock(mu);
      return heard.size() >= count;
    });
  };
  listen("the first");
  tell(7);
  ASSERT_TRUE(await(1));
  listen("the second");
  tell(8);
  ASSERT_TRUE(await(3));
  agent_.reset();
  std::sort(heard.begin(), heard.end());
  EXPECT_THAT(heard, ElementsAre("the first hears 7", "the first hears 8", "the second hears 8"));
}

TEST_F(AgentTest, AReportIsTheRanksUntilItIsWithdrawn) {
  Agent& agent = Connect();
  WaitReport report;
  report.rank = 3;
  report.calls = {{"world", {0, 1, 2, 3}, 17, {}, "barrier number 17", true},
                  {"pair", {3, 1}, 4, {1}, "receive number 4", false}};
  report.called = {{"world", 17}};
  report.sending_to = {1};
  report.other_threads = 2;
  report.deadlock_after = std::chrono::milliseconds(4500);
  ASSERT_TRUE(agent.ReportWait(report, kLong).ok());
  ASSERT_TRUE(daemon_.waiting());
  EXPECT_EQ(FromProto(*daemon_.waiting()), report);
  EXPECT_TRUE(agent.WithdrawWait(kLong).ok());
  EXPECT_FALSE(daemon_.waiting());
}

TEST_F(AgentTest, ADaemonThatWasStartedAnewHearsForWhatTheRankWaits) {
  Agent& agent = Connect();
  std::atomic<int> heard = 0;
  agent.Watch({.on_left = [&](int) { ++heard; }});
  v1::PeerNews news;
  news.add_left(2);
  daemon_.Tell(news);
  ASSERT_TRUE(testing::Eventually([&] { return heard == 1; }));
  WaitReport report;
  report.rank = 3;
  report.calls = {{"world", {0, 1, 2, 3}, 17, {}, "barrier number 17", true}};
  ASSERT_TRUE(agent.ReportWait(report, kLong).ok());
  // The news are told again to each watch.
  const auto start_anew = [&] {
    const int before = heard;
    EndServer();
    daemon_.ForgetWait();
    Serve();
    return testing::Eventually([&] { return heard > before; });
  };
  ASSERT_TRUE(start_anew());
  ASSERT_TRUE(daemon_.waiting());
  EXPECT_EQ(FromProto(*daemon_.waiting()), report);
  // What the rank has withdrawn does not come back.
  EXPECT_TRUE(agent.WithdrawWait(kLong).ok());
  ASSERT_TRUE(start_anew());
  EXPECT_FALSE(daemon_.waiting());
  agent_.reset();
}

// As exit() does in a child of a rank: gRPC's threads are not there.
TEST_F(AgentTest, AForkedChildLeavesTheConnectionAlone) {
  Agent& agent = Connect();
  agent.Watch({});
  ASSERT_TRUE(agent.Set("key", "before").ok());
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    agent_.reset();
    _exit(0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(agent.Set("key", "after").ok());
}

TEST_F(AgentTest, AFlightRecordIsUploadedUnderTheNumberOfItsQuestion) {
  std::mutex mu;
  std::string record = R"({"groups":[]})";
  Connect().Watch({.flight_record = [&](int) {
    std::lock_guard lock(mu);
    return record;
  }});
  daemon_.AskForFlightRecord(7);
  ASSERT_TRUE(testing::Eventually([&] { return daemon_.uploads().size() == 1; }));
  EXPECT_EQ(daemon_.uploads()[0].request(), 7u);
  EXPECT_EQ(daemon_.uploads()[0].record().rank(), 3);
  EXPECT_EQ(daemon_.uploads()[0].record().json(), R"({"groups":[]})");
  {
    std::lock_guard lock(mu);
    record.clear();
  }
  daemon_.AskForFlightRecord(8);
  ASSERT_TRUE(testing::Eventually([&] { return daemon_.uploads().size() == 2; }));
  EXPECT_EQ(daemon_.uploads()[1].record().error(), "its process groups have ended");
  agent_.reset();
}

TEST_F(AgentTest, AListenerWithoutAFlightRecordLeavesTheAnswerToAnother) {
  std::atomic<bool> is_stopping = false;
  Connect().Watch({.on_stopping = [&](const std::string&) { is_stopping = true; }});
  daemon_.AskForFlightRecord(7);
  ASSERT_TRUE(testing::Eventually([&] { return daemon_.has_asked(); }));
  daemon_.StopGeneration("done");
  ASSERT_TRUE(testing::Eventually([&] { return is_stopping.load(); }));
  EXPECT_TRUE(daemon_.uploads().empty());
  agent_.reset();
}

TEST_F(AgentTest, ReportsAreDatagramsThatNeverBlock) {
  const os::UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (directory_ / "r3.sock").c_str());
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  Agent& agent = Connect();
  agent.SetCollectives(true, std::chrono::milliseconds(200));
  agent.SetCollectives(false, std::chrono::milliseconds(450));
  agent.Report({.step = 12, .loss = 0.5, .metrics = {{"lr", 0.001}}, .note = "a \"b\""});
  char buffer[1024];
  const ssize_t n = ::recv(socket.get(), buffer, sizeof(buffer), 0);
  ASSERT_GT(n, 0);
  EXPECT_EQ(
      std::string(buffer, n),
      R"({"step":12,"loss":0.5,"note":"a \"b\"","waited_seconds":0.25,"metrics":{"lr":0.001}})");
  // Nobody reads: far more than the socket holds.
  for (int i = 0; i < 100'000; ++i) agent.Report({.step = i});
  EXPECT_TRUE(agent.ReportReliably({.step = 13, .note = "done"}).ok());
  EXPECT_EQ(daemon_.last_progress().step(), 13);
  EXPECT_EQ(daemon_.last_progress().note(), "done");
  // agent/report.h, for programs without abseil.
  EXPECT_EQ(ReportReliably(&agent, {.step = 14}), "");
  EXPECT_EQ(daemon_.last_progress().step(), 14);
}

TEST(ReportTest, WithoutAnAgentNothingHappens) {
  Report(nullptr, {.step = 1});
  EXPECT_EQ(ReportReliably(nullptr, {.step = 1}), "");
}

TEST(FormatReportTest, WritesNonFiniteNumbersAsPythonDoes) {
  EXPECT_EQ(FormatReport({.loss = std::nan("")}), R"({"loss":NaN})");
  EXPECT_EQ(FormatReport({.metrics = {{"a", -INFINITY}, {"b", INFINITY}}}),
            R"({"metrics":{"a":-Infinity,"b":Infinity}})");
  EXPECT_EQ(FormatReport({}), "{}");
  EXPECT_EQ(FormatReport({.collective_bytes = 5, .samples = 64, .data_seconds = 0.5}),
            R"({"collective_bytes":5,"samples":64,"data_seconds":0.5})");
  EXPECT_EQ(FormatReport({.step = 3, .waited_seconds = 0.25}),
            R"({"step":3,"waited_seconds":0.25})");
}

TEST(AgentEnvironmentTest, NamesWhatIsMissingOrMalformed) {
  const std::map<std::string, std::string> all = {{"MESHRUN_AGENT", "unix:/s"},
                                                  {"MESHRUN_JOB_ID", "job"},
                                                  {"MESHRUN_GENERATION", "2"},
                                                  {"RANK", "3"},
                                                  {"MESHRUN_TOKEN", "t"}};
  const auto read = [](const std::map<std::string, std::string>& variables) {
    return ReadAgentEnvironment([&](const char* name) {
      const auto it = variables.find(name);
      return it == variables.end() ? nullptr : it->second.c_str();
    });
  };
  const auto good = read(all);
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->rank, 3);
  EXPECT_EQ(good->report_socket, "");
  for (const auto& [name, value] : all) {
    auto without = all;
    without.erase(name);
    EXPECT_THAT(std::string(read(without).status().message()), HasSubstr(name));
  }
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"MESHRUN_AGENT", "127.0.0.1:1"}, {"MESHRUN_GENERATION", "two"}, {"RANK", "-1"}}) {
    auto wrong = all;
    wrong[name] = value;
    EXPECT_THAT(std::string(read(wrong).status().message()), HasSubstr(name + " is '" + value));
  }
}

}  // namespace
}  // namespace meshrun::agent
