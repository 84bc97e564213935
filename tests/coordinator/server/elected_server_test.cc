// Coordinators that take over from each other, in an election of which the test decides the
// outcome.
#include "coordinator/elected_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "coordinator/http_front.h"
#include "core/error_detail.h"
#include "core/rpc/channel.h"
#include "core/rpc/loop_health.h"
#include "core/rpc/status_conversion.h"
#include "deploy/probe/health.grpc.pb.h"
#include "meshrun/v1/cluster_service.grpc.pb.h"
#include "meshrun/v1/job_service.grpc.pb.h"
#include "meshrun/v1/session.grpc.pb.h"
#include "meshrun/v1/store_service.grpc.pb.h"
#include "tests/coordinator/support/fake_leadership.h"
#include "tests/coordinator/support/grpc_worker.h"
#include "tests/coordinator/support/harness.h"
#include "tests/worker/support/processes.h"

namespace meshrun::coordinator::testing {
namespace {

using meshrun::testing::Eventually;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ElectedServerTest : public ::testing::Test {
 protected:
  ~ElectedServerTest() override {
    // Nobody waits for an election any more.
    for (auto& [name, member] : members_) member->Stop();
  }

  void Start(const std::string& name, std::string listen = "") {
    if (listen.empty()) listen = "unix:" + (sockets_ / (name + ".sock"));
    auto door = Door::Open({.listen = listen, .security = {.insecure_loopback = true}});
    ASSERT_TRUE(door.ok()) << door.status();
    const std::string address = (*door)->address();
    auto front = HttpFront::Open({.listen = "unix:" + (sockets_ / (name + ".http"))});
    ASSERT_TRUE(front.ok()) << front.status();
    auto member = ElectedServer::Start(
        {.name = name,
         .door = *std::move(door),
         .leadership = std::make_unique<FakeLeadership>(election_, name, address),
         .front = *std::move(front),
         .prepare = [this](const ElectedServer::Options::Note& note) { return Prepare(note); },
         .on_useless =
             [this](const absl::Status& why) {
               MutexLock lock(mu_);
               useless_ = why;
             }});
    ASSERT_TRUE(member.ok()) << member.status();
    members_[name] = *std::move(member);
  }
  absl::StatusOr<Server::Options> Prepare(const ElectedServer::Options::Note& note) {
    if (on_takeover_) on_takeover_(note);
    MutexLock lock(mu_);
    if (!fails_.ok()) return fails_;
    Server::Options options;
    options.store = std::make_unique<SharedStateStore>(state_);
    options.lease = seconds(120);
    options.state_engine = "etcd";
    return options;
  }
  // What each takeover ends with from now on.
  void SetFailure(const absl::Status& why) {
    MutexLock lock(mu_);
    fails_ = why;
  }
  void Elect(const std::string& name) {
    election_.Elect(name);
    ASSERT_TRUE(Eventually([&] { return members_.at(name)->term() != 0; }));
  }
  // The samples of /metrics by name and labels. Empty: the port did not answer.
  std::map<std::string, double> MetricsOf(const std::string& name) {
    httplib::Client client(sockets_ / (name + ".http"));
    client.set_address_family(AF_UNIX);
    std::map<std::string, double> samples;
    const auto answer = client.Get("/metrics");
    if (!answer || answer->status != 200) return samples;
    std::istringstream lines(answer->body);
    for (std::string line; std::getline(lines, line);) {
      const size_t value = line.rfind(' ');
      if (!line.starts_with('#')) samples[line.substr(0, value)] = std::stod(line.substr(value));
    }
    return samples;
  }
  std::string Address(const std::string& name) { return members_.at(name)->address(); }
  std::string Addresses() {
    std::string list;
    for (const auto& [name, member] : members_) {
      list += (list.empty() ? "" : ",") + member->address();
    }
    return list;
  }
  std::shared_ptr<grpc::Channel> ChannelTo(const std::string& name) {
    return *rpc::MakeChannel("test", Address(name), {.insecure_loopback = true});
  }
  std::unique_ptr<client::Client> Connect(const std::string& addresses) {
    auto client = client::Client::Connect({.address = addresses,
                                           .security = {.insecure_loopback = true},
                                           .timeout = seconds(20),
                                           .connect_timeout = seconds(20)});
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  static absl::Status Describe(const std::shared_ptr<grpc::Channel>& channel,
                               v1::DescribeClusterResponse* response = nullptr) {
    grpc::ClientContext context;
    rpc::SetTimeout(context, seconds(20));
    v1::DescribeClusterResponse ignored;
    return rpc::FromGrpc(v1::ClusterService::NewStub(channel)->DescribeCluster(
        &context, {}, response == nullptr ? &ignored : response));
  }
  // Whether the health check says that it serves.
  static bool Serves(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
    namespace health = grpc::health::v1;
    grpc::ClientContext context;
    rpc::SetTimeout(context, seconds(20));
    context.set_wait_for_ready(true);
    health::HealthCheckRequest request;
    request.set_service(service);
    health::HealthCheckResponse response;
    EXPECT_TRUE(health::Health::NewStub(channel)->Check(&context, request, &response).ok());
    return response.status() == health::HealthCheckResponse::SERVING;
  }

  const meshrun::testing::TemporaryDirectory sockets_;
  const std::shared_ptr<MemoryStateStore> state_ = std::make_shared<MemoryStateStore>();
  FakeElection election_;
  // Set before an election.
  std::function<void(const ElectedServer::Options::Note&)> on_takeover_;
  Mutex mu_;
  absl::Status fails_ MESHRUN_GUARDED_BY(mu_);
  absl::Status useless_ MESHRUN_GUARDED_BY(mu_);
  std::map<std::string, std::unique_ptr<ElectedServer>> members_;
};

void ExpectStandby(const absl::Status& status, const std::string& leader) {
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  const v1::ErrorDetail detail = DetailOf(status);
  EXPECT_TRUE(detail.standby());
  EXPECT_EQ(detail.origin(), v1::ERROR_ORIGIN_COORDINATOR);
  EXPECT_EQ(detail.leader(), leader);
}

TEST_F(ElectedServerTest, AStandbyNamesTheLeaderWhateverItIsAsked) {
  Start("a");
  Start("b");
  Elect("a");
  const auto channel = ChannelTo("b");
  const absl::Status status = Describe(channel);
  ExpectStandby(status, Address("a"));
  EXPECT_EQ(status.message(), "coordinator b is a standby: a leads at " + Address("a"));
  const auto expect = [&](const grpc::Status& end) {
    ExpectStandby(rpc::FromGrpc(end), Address("a"));
  };
  {
    grpc::ClientContext context;
    rpc::SetTimeout(context, seconds(20));
    const auto session = v1::SessionService::NewStub(channel)->OpenSession(&context);
    v1::OpenSessionResponse response;
    EXPECT_FALSE(session->Read(&response));
    expect(session->Finish());
  }
  {
    grpc::ClientContext context;
    rpc::SetTimeout(context, seconds(20));
    const auto logs = v1::JobService::NewStub(channel)->ReadLogs(&context, {});
    v1::ReadLogsResponse response;
    EXPECT_FALSE(logs->Read(&response));
    expect(logs->Finish());
  }
  {
    grpc::ClientContext context;
    rpc::SetTimeout(context, seconds(20));
    v1::UploadLogResponse response;
    const auto upload = v1::SessionService::NewStub(channel)->UploadLog(&context, &response);
    expect(upload->Finish());
  }
  {
    grpc::ClientContext context;
    rpc::SetTimeout(context, seconds(20));
    v1::AddValueResponse response;
    expect(v1::StoreService::NewStub(channel)->AddValue(&context, {}, &response));
  }
}

TEST_F(ElectedServerTest, WhereNobodyLeadsAStandbySaysSo) {
  Start("a");
  const absl::Status status = Describe(ChannelTo("a"));
  ExpectStandby(status, "");
  EXPECT_EQ(status.message(), "coordinator a is a standby, and no coordinator leads now");
  Elect("a");
  election_.Elect("");
  const auto channel = ChannelTo("a");
  std::string said;
  ASSERT_TRUE(Eventually([&] {
    said = std::string(Describe(channel).message());
    return said.find("its lease") != std::string::npos;
  })) << said;
}

// Kubernetes kills what does not live, and sends nothing to what is not ready.
TEST_F(ElectedServerTest, AStandbyLivesAndIsNotReady) {
  Start("a");
  Start("b");
  Elect("a");
  for (const char* service : {rpc::kReadyService, "meshrun.v1.JobService"}) {
    EXPECT_TRUE(Serves(ChannelTo("a"), service)) << service;
    EXPECT_FALSE(Serves(ChannelTo("b"), service)) << service;
  }
  EXPECT_TRUE(Serves(ChannelTo("a"), ""));
  EXPECT_TRUE(Serves(ChannelTo("b"), ""));
  Elect("b");
  ASSERT_TRUE(Eventually([&] { return !Serves(ChannelTo("a"), rpc::kReadyService); }));
  EXPECT_TRUE(Serves(ChannelTo("b"), rpc::kReadyService));
}

TEST_F(ElectedServerTest, WhoIsElectedGoesOnWithTheStateAtItsOwnAddress) {
  Start("a", "127.0.0.1:0");
  Start("b", "127.0.0.1:0");
  const std::string before = Address("b");
  Elect("a");
  const auto job = Connect(Address("a"))->Submit(MakeSpec(1, 1));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(members_.at("a")->term(), 1u);
  Elect("b");
  EXPECT_EQ(members_.at("b")->term(), 2u);
  EXPECT_EQ(Address("b"), before);
  v1::DescribeClusterResponse cluster;
  const auto channel = ChannelTo("b");
  ASSERT_TRUE(Describe(channel, &cluster).ok());
  EXPECT_EQ(cluster.jobs_total(), 1u);
  EXPECT_EQ(cluster.state_engine(), "etcd");
  ASSERT_EQ(cluster.coordinators_size(), 2);
  EXPECT_EQ(cluster.coordinators(0).name(), "a");
  EXPECT_FALSE(cluster.coordinators(0).leads());
  EXPECT_EQ(cluster.coordinators(1).address(), before);
  EXPECT_TRUE(cluster.coordinators(1).leads());
  // And back: a process leads as often as it is elected.
  Elect("a");
  EXPECT_EQ(members_.at("a")->term(), 3u);
  EXPECT_TRUE(Connect(Address("a"))->Get(job->job_id()).ok());
}

TEST_F(ElectedServerTest, NoCounterFallsWhenALeaderStandsBy) {
  Start("a", "127.0.0.1:0");
  Start("b", "127.0.0.1:0");
  Elect("a");
  ASSERT_TRUE(Connect(Address("a"))->Submit(MakeSpec(1, 1)).ok());
  const std::string calls = R"(meshrun_rpc_seconds_count{method="SubmitJob",code="OK"})";
  auto last = MetricsOf("a");
  EXPECT_EQ(last[calls], 1);
  EXPECT_GT(last["meshrun_commit_seconds_count"], 0);
  // It stands by, and leads again.
  for (const char* leader : {"b", "a"}) {
    Elect(leader);
    const double leads = leader == std::string("a") ? 1 : 0;
    std::map<std::string, double> now;
    ASSERT_TRUE(Eventually([&] {
      now = MetricsOf("a");
      const auto found = now.find("meshrun_coordinator_leader");
      // Until it has withdrawn, its old routes answer, with what a leader tells of jobs.
      return found != now.end() && found->second == leads &&
             now.contains("meshrun_queue_wait_seconds_count") == (leads == 1);
    }));
    for (const auto& [name, value] : last) {
      const bool is_counter = name.find("_total") != std::string::npos ||
                              name.find("_count") != std::string::npos ||
                              name.find("_sum") != std::string::npos;
      // What is told of jobs is told by the leader alone.
      if (!is_counter || !now.contains(name)) continue;
      EXPECT_GE(now[name], value) << name;
    }
    EXPECT_EQ(now[calls], 1);
    EXPECT_GE(now["meshrun_commit_seconds_count"], last["meshrun_commit_seconds_count"]);
    EXPECT_TRUE(now.contains(R"(meshrun_connections_closed_total{port="grpc"})"));
    last = now;
  }
}

TEST_F(ElectedServerTest, WhatWaitsAtALeaderThatLosesIsSentToTheNextOne) {
  Start("a");
  Start("b");
  Elect("a");
  GrpcWorker worker(ChannelTo("a"), {.name = "node1"});
  ASSERT_TRUE(worker.Connect());
  election_.Elect("b");
  ExpectStandby(rpc::FromGrpc(worker.AwaitEnd()), Address("b"));
}

// Nobody has told it: its own clock, say, after it stood still for a minute.
TEST_F(ElectedServerTest, ALeaderFindsOutByItselfThatItLeadsNoMore) {
  Start("a");
  Start("b");
  Elect("a");
  const auto channel = ChannelTo("a");
  ASSERT_TRUE(Describe(channel).ok());
  election_.ElectSilently("b");
  ExpectStandby(Describe(channel), Address("b"));
}

TEST_F(ElectedServerTest, ClientsFollowTheLeader) {
  Start("a");
  Start("b");
  Start("c");
  Elect("c");
  // All of them, and one that can only name it.
  const auto all = Connect(Addresses());
  const auto one = Connect(Address("a"));
  const auto job = all->Submit(MakeSpec(1, 1));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(one->Get(job->job_id()).ok());
  std::atomic<int> seen{0};
  std::thread watcher([&] {
    const absl::Status status = one->Watch(job->job_id(), [&](const v1::Job&) { ++seen; });
    EXPECT_TRUE(status.ok()) << status;
  });
  ASSERT_TRUE(Eventually([&] { return seen > 0; }));
  members_.at("c")->Stop();
  Elect("b");
  EXPECT_TRUE(all->Get(job->job_id()).ok());
  EXPECT_TRUE(all->Submit(MakeSpec(1, 1)).ok());
  Elect("a");
  EXPECT_TRUE(all->Cancel(job->job_id(), true, "enough").ok());
  watcher.join();
  EXPECT_GE(seen, 2);
}

// Until the next election calls wait; a submit with one request id is one job.
TEST_F(ElectedServerTest, ACallOutlivesATimeWithoutALeader) {
  Start("a");
  Start("b");
  Elect("a");
  const auto client = Connect(Addresses());
  members_.at("a")->Stop();
  absl::StatusOr<v1::Job> job;
  std::thread submitter([&] { job = client->Submit(MakeSpec(1, 1)); });
  // Both have refused it by now, or are about to.
  EXPECT_TRUE(absl::IsUnavailable(Describe(ChannelTo("b"))));
  Elect("b");
  submitter.join();
  ASSERT_TRUE(job.ok()) << job.status();
  const auto jobs = client->List();
  ASSERT_TRUE(jobs.ok());
  EXPECT_EQ(jobs->size(), 1u);
}

TEST_F(ElectedServerTest, AnErrorNamesAllWhoWereAsked) {
  Start("a");
  Start("b");
  const auto client = client::Client::Connect({.address = Addresses(),
                                               .timeout = std::chrono::seconds(3),
                                               .connect_timeout = std::chrono::seconds(3)});
  ASSERT_TRUE(absl::IsUnavailable(client.status())) << client.status();
  const std::string message(client.status().message());
  EXPECT_THAT(message, HasSubstr("no coordinator that leads was found at " + Address("a") + ", " +
                                 Address("b")));
  EXPECT_THAT(message, HasSubstr("no coordinator leads now"));
}

TEST_F(ElectedServerTest, OneThatCannotTakeOverYetTriesAgain) {
  std::atomic<int> attempts = 0;
  on_takeover_ = [&](const ElectedServer::Options::Note&) { ++attempts; };
  const std::vector<absl::Status> failures = {
      absl::UnavailableError("etcd is away"),
      absl::DeadlineExceededError("etcd is slow"),
      absl::AbortedError("another term"),
      absl::ResourceExhaustedError("etcd is full"),
      absl::FailedPreconditionError("a file is missing"),
      absl::OutOfRangeError("required revision has been compacted")};
  Start("a");
  SetFailure(failures.front());
  election_.Elect("a");
  for (const absl::Status& why : failures) {
    SetFailure(why);
    const int before = attempts;
    // The attempt that was under way, one with this failure, and another one.
    EXPECT_TRUE(Eventually([&] { return attempts >= before + 3; })) << why;
  }
  EXPECT_TRUE(absl::IsUnavailable(Describe(ChannelTo("a"))));
  SetFailure(absl::OkStatus());
  Elect("a");
  EXPECT_TRUE(Describe(ChannelTo("a")).ok());
}

// Another one may be able to.
TEST_F(ElectedServerTest, OneThatCanNeverTakeOverGivesUp) {
  Start("a");
  Start("b");
  SetFailure(absl::InvalidArgumentError("--policy: line 3"));
  election_.Elect("a");
  ASSERT_TRUE(Eventually([&] {
    MutexLock lock(mu_);
    return !useless_.ok();
  }));
  {
    MutexLock lock(mu_);
    EXPECT_EQ(useless_, absl::InvalidArgumentError("--policy: line 3"));
    fails_ = absl::OkStatus();
  }
  Elect("b");
}

// A newer meshrun has written it: no time makes this program understand it.
TEST_F(ElectedServerTest, OneThatDoesNotKnowTheStateGivesUp) {
  Start("a");
  SetFailure(absl::UnimplementedError("the state has schema 9"));
  election_.Elect("a");
  ASSERT_TRUE(Eventually([&] {
    MutexLock lock(mu_);
    return absl::IsUnimplemented(useless_);
  }));
}

TEST_F(ElectedServerTest, WhatIsSaidDuringATakeoverReachesTheLeader) {
  Start("a");
  members_.at("a")->Note("EtcdAlarm", "of a standby");
  on_takeover_ = [this](const ElectedServer::Options::Note& note) {
    note("EtcdNearlyFull", "of the first look");
    // Its file was read before.
    members_.at("a")->SetPolicy(v1::Policy());
  };
  Elect("a");
  const auto channel = ChannelTo("a");
  EXPECT_TRUE(Eventually([&] {
    v1::DescribeClusterResponse cluster;
    if (!Describe(channel, &cluster).ok()) return false;
    std::multiset<std::string> kinds;
    for (const v1::ClusterEvent& event : cluster.events()) kinds.insert(event.kind());
    return kinds.count("EtcdAlarm") == 1 && kinds.count("EtcdNearlyFull") == 1 &&
           kinds.count("PolicyChanged") == 1;
  }));
}

TEST_F(ElectedServerTest, APolicyOfATimeBeforeAnElectionIsReadByTheLeader) {
  Start("a");
  members_.at("a")->SetPolicy(v1::Policy());
  Elect("a");
  v1::DescribeClusterResponse cluster;
  ASSERT_TRUE(Describe(ChannelTo("a"), &cluster).ok());
  for (const v1::ClusterEvent& event : cluster.events()) EXPECT_NE(event.kind(), "PolicyChanged");
}

TEST_F(ElectedServerTest, NobodyElseCanListenWhereAStandbyDoes) {
  Start("a", "127.0.0.1:0");
  EXPECT_TRUE(absl::IsAlreadyExists(
      Door::Open({.listen = Address("a"), .security = {.insecure_loopback = true}}).status()));
  Start("b");
  EXPECT_TRUE(absl::IsAlreadyExists(Door::Open({.listen = Address("b")}).status()));
}

}  // namespace
}  // namespace meshrun::coordinator::testing
