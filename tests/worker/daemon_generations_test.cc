// The worker daemon when processes live on from one generation into the next, with real ranks and
// the coordinator in the test's hands; and its fence time.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <sstream>

#include "core/os/boot_time.h"
#include "core/os/files.h"
#include "core/rpc/channel.h"
#include "meshrun/v1/agent_service.grpc.pb.h"
#include "meshrun/v1/supervisor.pb.h"
#include "tests/worker/support/daemon_fixture.h"
#include "worker/supervisor/frame.h"
#include "worker/supervisor/unix_socket.h"

namespace meshrun::worker {
namespace {

using std::chrono::milliseconds;
using testing::AwaitGone;
using testing::AwaitPid;
using testing::DaemonTest;
using ::testing::ElementsAre;
using testing::Eventually;
using testing::FakeCoordinator;
using ::testing::HasSubstr;
using testing::kJob;
using ::testing::UnorderedElementsAre;
using Request = v1::OpenSessionRequest;

constexpr std::chrono::hours kForever(1);
// Rank 0 and what takes its place run until "go0" is there, and so on.
constexpr char kUntilGo[] =
    "echo $MESHRUN_TOKEN; echo $MESHRUN_AGENT; echo $$ > pid$RANK.$MESHRUN_GENERATION;"
    "while [ ! -e go$RANK.$MESHRUN_GENERATION ]; do sleep 0.01; done; exit 5";

class DaemonGenerationsTest : public DaemonTest {
 protected:
  using Watch = grpc::ClientReader<v1::WatchGenerationResponse>;

  // Two ranks of generation 1.
  void RunTwo() {
    StartDaemon();
    AwaitHello();
    EXPECT_TRUE(Prepare(PrepareFor(kUntilGo, 2)).ok());
    pids_ = Start();
    ASSERT_TRUE(Eventually([&] {
      const auto output = os::ReadFile(Stdout(0));
      if (!output.ok()) return false;
      std::istringstream lines(*output);
      return std::getline(lines, token_) && std::getline(lines, address_) &&
             output->ends_with('\n');
    }));
    AwaitPid(directory_ / "pid1.1");
    agent_ = v1::AgentService::NewStub(
        grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  }
  void End(const std::string& name) {
    ASSERT_TRUE(os::WriteFileAtomically(directory_ / name, "").ok());
  }
  // Rank 0 lives on as rank 1, and rank 0 is a new process.
  v1::Prepare PrepareSwapped() {
    v1::Prepare prepare = PrepareFor(kUntilGo, 2);
    prepare.mutable_ranks(1)->set_process_generation(1);
    prepare.mutable_ranks(1)->set_process_rank(0);
    prepare.mutable_ranks(0)->set_process_generation(2);
    prepare.mutable_ranks(0)->set_process_rank(0);
    return prepare;
  }
  static std::function<bool(const Request&)> EndOf(uint64_t generation) {
    return [generation](const Request& message) {
      return message.has_generation_ended() && message.fence().generation() == generation;
    };
  }
  void SendStart(uint64_t generation) {
    v1::OpenSessionResponse message;
    message.mutable_start()->set_master_addr("127.0.0.1");
    message.mutable_start()->set_master_port(20002);
    coordinator_->Send(message, kJob, generation);
  }
  grpc::Status Register(uint64_t generation, int rank, bool in_process,
                        v1::RegisterRankResponse* response) {
    grpc::ClientContext context;
    rpc::SetTimeout(context, testing::kPatience);
    v1::RegisterRankRequest request;
    request.mutable_fence()->set_job_id(kJob);
    request.mutable_fence()->set_generation(generation);
    request.set_rank(rank);
    request.set_token(token_);
    request.set_in_process(in_process);
    return agent_->RegisterRank(&context, request, response);
  }
  std::unique_ptr<Watch> WatchAs(grpc::ClientContext* context, uint64_t generation, int rank) {
    rpc::SetTimeout(*context, testing::kPatience);
    v1::WatchGenerationRequest request;
    request.mutable_fence()->set_job_id(kJob);
    request.mutable_fence()->set_generation(generation);
    request.set_rank(rank);
    request.set_token(token_);
    return agent_->WatchGeneration(context, request);
  }
  // The place that a watch of this rank is told as its last event.
  v1::RegisterRankResponse AwaitPlace(Watch& watch) {
    v1::WatchGenerationResponse event;
    while (watch.Read(&event)) {
      if (!event.has_new_generation()) continue;
      const v1::RegisterRankResponse place = event.new_generation();
      EXPECT_FALSE(watch.Read(&event));
      EXPECT_TRUE(watch.Finish().ok());
      return place;
    }
    ADD_FAILURE() << "no new generation: " << watch.Finish().error_message();
    return {};
  }

  std::map<int, int64_t> pids_;
  std::string token_, address_;
  std::unique_ptr<v1::AgentService::Stub> agent_;
};

TEST_F(DaemonGenerationsTest, AWatchThatEndsWithItsGenerationIsToldNothingMore) {
  RunTwo();
  grpc::ClientContext context;
  const auto watch = WatchAs(&context, 1, 0);
  v1::OpenSessionResponse news;
  news.mutable_peer_news()->add_lost()->set_rank(1);
  coordinator_->Send(news, kJob, 1);
  v1::WatchGenerationResponse event;
  ASSERT_TRUE(watch->Read(&event));
  End("go0.1");
  End("go1.1");
  ASSERT_TRUE(coordinator_->AwaitKind(Request::kGenerationEnded));
  while (watch->Read(&event)) {
  }
  EXPECT_TRUE(watch->Finish().ok());
  // The coordinator may not have heard of the end: it was away.
  uint64_t last = 0;
  for (int i = 0; i < 3; ++i) {
    coordinator_->Send(news, kJob, 1);
    const auto heartbeat = coordinator_->Await([&](const Request& message) {
      return message.has_heartbeat() && message.heartbeat().sequence() > last;
    });
    ASSERT_TRUE(heartbeat) << "the daemon has ended";
    last = heartbeat->heartbeat().sequence();
  }
}

TEST_F(DaemonGenerationsTest, AProcessLivesOnAsAnotherRankBesideANewOne) {
  RunTwo();
  v1::RegisterRankResponse place;
  EXPECT_TRUE(Register(1, 0, true, &place).ok());
  const auto joined = coordinator_->AwaitKind(Request::kRanksJoined);
  ASSERT_TRUE(joined);
  EXPECT_THAT(joined->ranks_joined().in_process(), ElementsAre(0));
  grpc::ClientContext context;
  const auto watch = WatchAs(&context, 1, 0);
  End("go1.1");
  EXPECT_EQ(AwaitRankExit().exit_code(), 5);
  const v1::PrepareResult prepared = Prepare(PrepareSwapped(), 2);
  EXPECT_TRUE(prepared.ok()) << prepared.error();
  const auto pids = Start(2);
  EXPECT_EQ(pids.at(1), pids_.at(0));
  EXPECT_EQ(AwaitPid(directory_ / "pid0.2"), pids.at(0));
  place = AwaitPlace(*watch);
  EXPECT_EQ(place.assignment().rank(), 1);
  EXPECT_EQ(place.fence().generation(), 2u);
  EXPECT_EQ(place.master_port(), 20001u);
  EXPECT_EQ(Register(1, 0, true, &place).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(Register(2, 1, true, &place).ok());
  EXPECT_EQ(coordinator_->AwaitKind(Request::kRanksJoined)->fence().generation(), 2u);
  // A process that slept meanwhile is told, too.
  grpc::ClientContext late;
  EXPECT_EQ(AwaitPlace(*WatchAs(&late, 1, 0)).assignment().rank(), 1);
  // Its end is that of its rank today; its files are those of its first.
  End("go0.1");
  const auto exit = coordinator_->AwaitKind(Request::kRankExit);
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->fence().generation(), 2u);
  EXPECT_EQ(exit->rank_exit().rank(), 1);
  EXPECT_EQ(exit->rank_exit().process_generation(), 1u);
  EXPECT_EQ(exit->rank_exit().process_rank(), 0);
  End("go0.2");
  EXPECT_EQ(AwaitRankExit().rank(), 0);
  EXPECT_TRUE(os::ReadFile(State("/logs/" + std::string(kJob) + "/2/0.stdout.log")).ok());
  const auto ended = coordinator_->AwaitKind(Request::kGenerationEnded);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->fence().generation(), 2u);
}

TEST_F(DaemonGenerationsTest, ADumpShowsWhatTheProcessesDoBesideTheirLogs) {
  RunTwo();
  grpc::ClientContext context;
  const auto watch = WatchAs(&context, 1, 0);
  v1::OpenSessionResponse message;
  message.mutable_peer_news()->add_lost()->set_rank(9);
  coordinator_->Send(message, kJob, 1);
  v1::WatchGenerationResponse event;
  ASSERT_TRUE(watch->Read(&event)) << "the watch has begun";
  message.mutable_dump()->set_reason("no step for 3 m");
  coordinator_->Send(message, kJob, 1);
  while (event.flight_record_request() == 0) ASSERT_TRUE(watch->Read(&event));
  grpc::ClientContext upload_context;
  rpc::SetTimeout(upload_context, testing::kPatience);
  v1::UploadFlightRecordRequest upload;
  upload.mutable_fence()->set_job_id(kJob);
  upload.mutable_fence()->set_generation(1);
  upload.set_token(token_);
  upload.set_request(event.flight_record_request());
  upload.mutable_record()->set_json("{\"groups\": []}");
  v1::UploadFlightRecordResponse done;
  EXPECT_TRUE(agent_->UploadFlightRecord(&upload_context, upload, &done).ok());
  const std::filesystem::path logs = std::filesystem::path(Stdout(0)).parent_path();
  const auto holds = [&](const char* file, const char* text) {
    const auto content = os::ReadFile((logs / file).string());
    return content.ok() && content->find(text) != std::string::npos;
  };
  EXPECT_TRUE(Eventually([&] { return holds("0.flight_record.json", "groups"); }));
  EXPECT_TRUE(Eventually([&] { return holds("1.dump.txt", "call stacks"); }));
  EXPECT_TRUE(holds("1.dump.txt", "no step for 3 m"));
}

TEST_F(DaemonGenerationsTest, StacksOfTheRanksThatAreAskedForAreUploaded) {
  RunTwo();
  v1::OpenSessionResponse message;
  message.mutable_collect_stacks()->set_request(7);
  message.mutable_collect_stacks()->add_ranks(1);
  coordinator_->Send(message, kJob, 1);
  std::vector<v1::UploadStackRequest> stacks = coordinator_->AwaitStacks(1);
  ASSERT_EQ(stacks.size(), 1u);
  EXPECT_EQ(stacks[0].request(), 7u);
  EXPECT_EQ(stacks[0].fence().job_id(), kJob);
  EXPECT_EQ(stacks[0].fence().generation(), 1u);
  EXPECT_EQ(stacks[0].stack().rank(), 1);
  EXPECT_THAT(stacks[0].stack().text(), HasSubstr("call stacks"));
  // A dump uploads where all of them stand.
  message.mutable_dump()->set_reason("no step for 3 m");
  message.mutable_dump()->set_request(8);
  coordinator_->Send(message, kJob, 1);
  stacks = coordinator_->AwaitStacks(3);
  ASSERT_EQ(stacks.size(), 3u);
  EXPECT_EQ(stacks[1].request(), 8u);
  EXPECT_EQ(stacks[1].stack().rank() + stacks[2].stack().rank(), 1);
}

TEST_F(DaemonGenerationsTest, RequestsForTheStackOfARankShareOneDebugger) {
  const std::string looks = directory_ / "looks", go = directory_ / "go";
  std::filesystem::create_directory(directory_ / "bin");
  for (const char* debugger : {"bin/eu-stack", "bin/gdb"}) {
    ASSERT_TRUE(os::WriteFileAtomically(directory_ / debugger,
                                        "#!/bin/sh\necho look >> " + looks + "\nwhile [ ! -e " +
                                            go + " ]; do sleep 0.01; done\n",
                                        0700)
                    .ok());
  }
  environment_["PATH"] = (directory_ / "bin") + ":/usr/local/bin:/usr/bin:/bin";
  RunTwo();
  v1::OpenSessionResponse message;
  message.mutable_collect_stacks()->add_ranks(1);
  for (int request = 1; request <= 20; ++request) {
    message.mutable_collect_stacks()->set_request(request);
    coordinator_->Send(message, kJob, 1);
  }
  message.mutable_dump()->set_reason("no step for 3 m");
  message.mutable_dump()->set_request(21);
  coordinator_->Send(message, kJob, 1);
  // All of it has arrived when this is answered.
  EXPECT_TRUE(Prepare(PrepareSwapped(), 2).ok());
  ASSERT_TRUE(os::WriteFileAtomically(go, "").ok());
  EXPECT_EQ(coordinator_->AwaitStacks(22).size(), 22u);
  EXPECT_EQ(os::ReadFile(looks).value_or(""), "look\nlook\n") << "one for each rank";
}

TEST_F(DaemonGenerationsTest, AProcessThatHasEndedCannotLiveOn) {
  RunTwo();
  End("go0.1");
  EXPECT_EQ(AwaitRankExit().rank(), 0);
  const v1::PrepareResult refused = Prepare(PrepareSwapped(), 2);
  EXPECT_FALSE(refused.ok());
  EXPECT_FALSE(refused.bad_command());
  EXPECT_THAT(refused.error(),
              HasSubstr("started as rank 0 of generation 1, ended with exit code 5"));
  v1::Prepare unknown = PrepareSwapped();
  unknown.mutable_ranks(1)->set_process_rank(7);
  EXPECT_THAT(Prepare(unknown, 3).error(), HasSubstr("does not run on here"));
}

TEST_F(DaemonGenerationsTest, TheEndOfAProcessThatWasToLiveOnIsToldOfBothGenerations) {
  RunTwo();
  EXPECT_TRUE(Prepare(PrepareSwapped(), 2).ok());
  EXPECT_EQ(AwaitRankExit().rank(), 1) << "it has no place in generation 2";
  End("go0.1");
  std::vector<std::pair<uint64_t, int>> told;
  for (int i = 0; i < 2; ++i) {
    const auto exit = coordinator_->AwaitKind(Request::kRankExit);
    ASSERT_TRUE(exit);
    told.emplace_back(exit->fence().generation(), exit->rank_exit().rank());
  }
  EXPECT_THAT(told, UnorderedElementsAre(std::pair(uint64_t{1}, 0), std::pair(uint64_t{2}, 1)));
}

TEST_F(DaemonGenerationsTest, AHigherPrepareReplacesOneThatWasNotStarted) {
  RunTwo();
  EXPECT_TRUE(Prepare(PrepareSwapped(), 2).ok());
  v1::Prepare third = PrepareSwapped();
  third.mutable_ranks(0)->set_process_generation(3);
  EXPECT_TRUE(Prepare(third, 3).ok());
  EXPECT_FALSE(Prepare(PrepareSwapped(), 2).ok());
  Start(3);
  AwaitPid(directory_ / "pid0.3");
  EXPECT_FALSE(os::ReadFile(directory_ / "pid0.2").ok());
}

TEST_F(DaemonGenerationsTest, ARestartedDaemonKnowsWhatLivesOnAndWhatIsPrepared) {
  RunTwo();
  v1::RegisterRankResponse place;
  EXPECT_TRUE(Register(1, 0, true, &place).ok());
  EXPECT_TRUE(coordinator_->AwaitKind(Request::kRanksJoined));
  End("go1.1");
  EXPECT_EQ(AwaitRankExit().rank(), 1);
  EXPECT_TRUE(Prepare(PrepareSwapped(), 2).ok());
  const auto restart = [&] {
    ::kill(daemon_, SIGKILL);
    testing::AwaitExit(daemon_);
    StartDaemon();
    return AwaitHello();
  };
  Request hello = restart();
  ASSERT_EQ(hello.hello().running_size(), 2);
  EXPECT_TRUE(hello.hello().running(0).started());
  EXPECT_THAT(hello.hello().running(0).joined().in_process(), ElementsAre(0));
  EXPECT_THAT(hello.hello().running(0).running_ranks(), ElementsAre(0));
  EXPECT_EQ(hello.hello().running(1).generation(), 2u);
  EXPECT_FALSE(hello.hello().running(1).started());
  EXPECT_THAT(hello.hello().running(1).running_ranks(), ElementsAre(1));
  SendStart(2);
  AwaitPid(directory_ / "pid0.2");
  hello = restart();
  ASSERT_EQ(hello.hello().running_size(), 1);
  EXPECT_EQ(hello.hello().running(0).generation(), 2u);
  EXPECT_TRUE(hello.hello().running(0).started());
  EXPECT_THAT(hello.hello().running(0).running_ranks(), ElementsAre(0, 1));
  grpc::ClientContext late;
  EXPECT_EQ(AwaitPlace(*WatchAs(&late, 1, 0)).assignment().rank(), 1);
}

// The coordinator frees the slots of a generation that has ended, so what it was to follow must be
// gone.
TEST_F(DaemonGenerationsTest, AStopOfARefusedGenerationEndsWhatItWasToFollow) {
  RunTwo();
  End("go0.1");
  EXPECT_EQ(AwaitRankExit().rank(), 0);
  EXPECT_FALSE(Prepare(PrepareSwapped(), 2).ok());
  v1::OpenSessionResponse stop;
  *stop.mutable_stop()->mutable_grace() = ToProtoDuration(kForever);
  stop.mutable_stop()->set_reason("here: rank 0 has ended");
  coordinator_->Send(stop, kJob, 2);
  EXPECT_TRUE(coordinator_->Await(EndOf(2)));
  EXPECT_NE(::kill(static_cast<pid_t>(pids_.at(1)), 0), 0);
  const v1::RankExit exit = AwaitRankExit();
  EXPECT_EQ(exit.rank(), 1);
  EXPECT_TRUE(exit.teardown());
}

// As of a node that was lost before it heard of generation 2.
TEST_F(DaemonGenerationsTest, AForgetOfALaterGenerationEndsWhatRunsHere) {
  RunTwo();
  v1::OpenSessionResponse forget;
  forget.mutable_forget();
  coordinator_->Send(forget, kJob, 2);
  EXPECT_TRUE(coordinator_->Await(EndOf(2)));
  for (const auto& [rank, pid] : pids_) EXPECT_NE(::kill(static_cast<pid_t>(pid), 0), 0) << rank;
}

TEST_F(DaemonGenerationsTest, AProcessWithoutAPlaceIsStopped) {
  RunTwo();
  grpc::ClientContext context;
  const auto watch = WatchAs(&context, 1, 1);
  v1::OpenSessionResponse news;
  news.mutable_peer_news()->add_lost()->set_rank(9);
  coordinator_->Send(news, kJob, 1);
  v1::WatchGenerationResponse event;
  ASSERT_TRUE(watch->Read(&event)) << "the watch has begun";
  v1::Prepare one = PrepareFor(kUntilGo, 1);
  one.mutable_ranks(0)->set_process_generation(1);
  one.mutable_ranks(0)->set_process_rank(0);
  EXPECT_TRUE(Prepare(one, 2).ok());
  EXPECT_NE(::kill(static_cast<pid_t>(pids_.at(1)), 0), 0) << "it is gone before the answer";
  ASSERT_TRUE(watch->Read(&event));
  EXPECT_TRUE(event.stopping());
  EXPECT_THAT(event.reason(), HasSubstr("generation 2 of this job goes on without this rank"));
  const v1::RankExit exit = AwaitRankExit();
  EXPECT_EQ(exit.rank(), 1);
  EXPECT_TRUE(exit.teardown());
  EXPECT_EQ(Start(2).at(0), pids_.at(0));
  EXPECT_EQ(::kill(static_cast<pid_t>(pids_.at(0)), 0), 0);
}

TEST_F(DaemonGenerationsTest, AGenerationOfNewProcessesWaitsForTheOldOnes) {
  StartDaemon();
  AwaitHello();
  v1::Prepare prepare =
      PrepareFor("trap '' TERM; echo $$ > pid; until [ -e go ]; do sleep 0.01; done");
  *prepare.mutable_spec()->mutable_kill_grace() = ToProtoDuration(kForever);
  EXPECT_TRUE(Prepare(prepare).ok());
  Start();
  const pid_t old = AwaitPid(directory_ / "pid");
  v1::OpenSessionResponse message;
  *message.mutable_prepare() = PrepareFor("exit 0");
  coordinator_->Send(message, kJob, 2);
  // Asked twice, it answers once, and only now.
  coordinator_->Send(message, kJob, 2);
  End("go");
  const auto result = coordinator_->AwaitKind(Request::kPrepareResult);
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->prepare_result().ok()) << result->prepare_result().error();
  EXPECT_NE(::kill(old, 0), 0);
}

TEST_F(DaemonGenerationsTest, RanksAreToldToStandStillAndSoIsTheCoordinator) {
  RunTwo();
  v1::OpenSessionResponse message;
  message.mutable_quiesce()->set_reason("the world grows");
  message.mutable_quiesce()->set_save(true);
  coordinator_->Send(message, kJob, 1);
  grpc::ClientContext context;
  const auto watch = WatchAs(&context, 1, 0);
  v1::WatchGenerationResponse event;
  ASSERT_TRUE(watch->Read(&event));
  EXPECT_EQ(event.quiesce().reason(), "the world grows");
  EXPECT_TRUE(event.quiesce().save());
  for (int rank = 0; rank < 2; ++rank) {
    grpc::ClientContext call;
    v1::ReportQuiescedRequest request;
    request.mutable_fence()->set_job_id(kJob);
    request.mutable_fence()->set_generation(1);
    request.set_rank(rank);
    request.set_token(token_);
    request.set_step(17);
    v1::ReportQuiescedResponse response;
    EXPECT_TRUE(agent_->ReportQuiesced(&call, request, &response).ok());
  }
  EXPECT_TRUE(coordinator_->Await([](const Request& request) {
    return request.has_ranks_quiesced() && request.ranks_quiesced().steps_size() == 2 &&
           request.ranks_quiesced().steps().at(1) == 17;
  }));
  context.TryCancel();
  static_cast<void>(watch->Finish());
}

TEST_F(DaemonGenerationsTest, AnswersThatComeLateDoNotKeepRanksAlive) {
  coordinator_->Shutdown();
  coordinator_ = std::make_unique<FakeCoordinator>(
      FakeCoordinator::Options{.heartbeat = milliseconds(20), .address = CoordinatorAddress()});
  StartDaemon({"--orphan-timeout", "400ms"});
  const Request hello = AwaitHello();
  // The orphan timeout, five seconds between SIGTERM and SIGKILL, two for the kill.
  EXPECT_EQ(FromProto(hello.hello().fence_after()), milliseconds(7400));
  Prepare(PrepareFor("echo $$ > pid; exec sleep 1000"));
  Start();
  const pid_t rank = AwaitPid(directory_ / "pid");
  // After less than a second they are of heartbeats that lie more than 400 ms back.
  coordinator_->FallBehind();
  ASSERT_TRUE(AwaitGone(rank));
  EXPECT_TRUE(AwaitRankExit().teardown());
}

// The earliest is the safe one: ranks may end too early, and never too late.
TEST_F(DaemonGenerationsTest, ARestartedDaemonInheritsTheEarliestContactOfItsSupervisors) {
  StartDaemon({"--orphan-timeout", "1h"});
  AwaitHello();
  std::vector<pid_t> ranks;
  for (const std::string job : {"one", "two"}) {
    v1::OpenSessionResponse message;
    *message.mutable_prepare() = PrepareFor("echo $$ > " + job + "; exec sleep 1000");
    coordinator_->Send(message, job, 1);
    ASSERT_TRUE(coordinator_->AwaitKind(Request::kPrepareResult));
    message.mutable_start()->set_master_addr("127.0.0.1");
    coordinator_->Send(message, job, 1);
    ranks.push_back(AwaitPid(directory_ / job));
  }
  ::kill(daemon_, SIGKILL);
  testing::AwaitExit(daemon_);
  coordinator_->Shutdown();
  // One of the two supervisors has heard of no contact for two hours, and would wait for two more.
  const std::filesystem::directory_iterator first(State("/g"));
  const auto connection = ConnectUnix((first->path() / "sup.sock").string());
  ASSERT_TRUE(connection.ok()) << connection.status();
  v1::SupervisorRequest request;
  *request.mutable_ping()->mutable_good_for() = ToProtoDuration(4 * kForever);
  request.mutable_ping()->set_since_boottime_nanos((os::BootTimeNow() - 2 * kForever).count());
  FrameWriter writer;
  writer.Append(request);
  ASSERT_TRUE(writer.Flush(connection->get()));
  StartDaemon({"--orphan-timeout", "1h"});
  for (const pid_t rank : ranks) ASSERT_TRUE(AwaitGone(rank));
}

TEST_F(DaemonGenerationsTest, ASupervisorKeepsTheFenceTimeOfADaemonThatStandsStill) {
  coordinator_->Shutdown();
  // No lease ends.
  coordinator_ = std::make_unique<FakeCoordinator>(FakeCoordinator::Options{
      .lease = kForever, .heartbeat = milliseconds(20), .address = CoordinatorAddress()});
  StartDaemon({"--orphan-timeout", "2s"});
  AwaitHello();
  Prepare(PrepareFor("trap '' TERM; echo $$ > pid; while :; do sleep 1000; done"));
  Start();
  const pid_t rank = AwaitPid(directory_ / "pid");
  ::kill(daemon_, SIGSTOP);
  EXPECT_TRUE(AwaitGone(rank));
  ::kill(daemon_, SIGCONT);
  EXPECT_TRUE(AwaitRankExit().teardown());
}

}  // namespace
}  // namespace meshrun::worker
