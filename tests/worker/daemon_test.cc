// The worker daemon as a process, with real ranks, against a coordinator that the test plays.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "core/os/files.h"
#include "core/os/process.h"
#include "core/proto_time.h"
#include "core/rpc/channel.h"
#include "meshrun/v1/agent_service.grpc.pb.h"
#include "tests/worker/support/daemon_fixture.h"

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
using Request = v1::OpenSessionRequest;

TEST_F(DaemonTest, TellsAllAddressesAndTakesTheFirstOfRankZerosThatItCanReach) {
  StartDaemon({"--address", "10.0.0.7,192.168.1.7", "--address", "node7.example"});
  EXPECT_THAT(AwaitHello().hello().addresses(),
              ElementsAre("10.0.0.7", "192.168.1.7", "node7.example"));
  Prepare(PrepareFor("echo $MASTER_ADDR; exit 3"));
  v1::OpenSessionResponse start;
  // No socket can be connected to the first.
  for (const char* address : {"255.255.255.255", "127.0.0.2", "127.0.0.1"}) {
    start.mutable_start()->add_master_addresses(address);
  }
  start.mutable_start()->set_master_addr("255.255.255.255");
  start.mutable_start()->set_master_port(20001);
  coordinator_->Send(start, kJob, 1);
  EXPECT_THAT(AwaitRankExit().last_lines(), ElementsAre("127.0.0.2"));
}

TEST_F(DaemonTest, RunsAGenerationFromHelloToItsEnd) {
  StartDaemon({"--slots", "3"});
  const Request hello = AwaitHello();
  EXPECT_EQ(hello.hello().name(), "here");
  EXPECT_THAT(hello.hello().addresses(), ElementsAre("127.0.0.1"));
  EXPECT_EQ(hello.hello().resources().slots(), 3u);
  EXPECT_EQ(hello.fence().incarnation(), 1u);
  const v1::PrepareResult prepared =
      Prepare(PrepareFor("echo $RANK of $WORLD_SIZE at $MASTER_PORT; exit 3"));
  EXPECT_TRUE(prepared.ok()) << prepared.error();
  EXPECT_GE(prepared.master_port(), 20000u);
  EXPECT_LE(prepared.master_port(), 29999u);
  EXPECT_EQ(Start().size(), 1u);
  const v1::RankExit exit = AwaitRankExit();
  EXPECT_EQ(exit.exit_code(), 3);
  EXPECT_FALSE(exit.teardown());
  EXPECT_THAT(exit.last_lines(), ElementsAre("0 of 1 at 20001"));
  const auto ended = coordinator_->AwaitKind(Request::kGenerationEnded);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->fence().job_id(), kJob);
  EXPECT_EQ(ended->fence().term(), 1u);
  v1::OpenSessionResponse forget;
  forget.mutable_forget();
  coordinator_->Send(forget, kJob, 1);
  EXPECT_TRUE(Eventually([&] { return ::rmdir(State("/g").c_str()) == 0; }));
}

TEST_F(DaemonTest, SaysWhatIsWrongWithACommand) {
  StartDaemon();
  AwaitHello();
  v1::Prepare prepare = PrepareFor("");
  prepare.mutable_spec()->set_command(0, "./absent");
  const v1::PrepareResult result = Prepare(prepare);
  EXPECT_FALSE(result.ok());
  EXPECT_TRUE(result.bad_command());
  EXPECT_THAT(result.error(), HasSubstr("absent: no such file"));
}

TEST_F(DaemonTest, StartsRanksAfterItsProgramWasReplaced) {
  const auto program = os::ReadFile(program_);
  ASSERT_TRUE(program.ok());
  program_ = directory_ / "meshrun-worker";
  ASSERT_TRUE(os::WriteFileAtomically(program_, *program, 0755).ok());
  StartDaemon();
  AwaitHello();
  // As an upgrade does it; this version cannot supervise.
  ASSERT_TRUE(os::WriteFileAtomically(program_, "#!/bin/sh\nexit 1\n", 0755).ok());
  const v1::PrepareResult prepared = Prepare(PrepareFor("exit 3"));
  EXPECT_TRUE(prepared.ok()) << prepared.error();
  Start();
  EXPECT_EQ(AwaitRankExit().exit_code(), 3);
  ASSERT_EQ(::unlink(program_.c_str()), 0);
  EXPECT_TRUE(Prepare(PrepareFor("exit 3"), 2).ok());
}

TEST_F(DaemonTest, StopsItsRanksWithTheGraceAndMarksThemAsTeardown) {
  StartDaemon();
  AwaitHello();
  Prepare(PrepareFor("trap '' TERM; echo $$ > $RANK.pid; while :; do sleep 1000; done", 2));
  Start();
  AwaitPid(directory_ / "0.pid");
  AwaitPid(directory_ / "1.pid");
  Stop(milliseconds(100), "a peer failed");
  for (int i = 0; i < 2; ++i) {
    const v1::RankExit exit = AwaitRankExit();
    EXPECT_EQ(exit.signal(), SIGKILL);
    EXPECT_TRUE(exit.teardown());
  }
  EXPECT_TRUE(coordinator_->AwaitKind(Request::kGenerationEnded));
}

TEST_F(DaemonTest, ARestartedDaemonTakesItsRanksOver) {
  StartDaemon();
  AwaitHello();
  Prepare(PrepareFor("[ $RANK = 0 ] || exit 6; echo $$ > pid; sleep 1000", 2));
  Start();
  const pid_t rank = AwaitPid(directory_ / "pid");
  EXPECT_EQ(AwaitRankExit().exit_code(), 6);
  ::kill(daemon_, SIGKILL);
  testing::AwaitExit(daemon_);
  StartDaemon();
  const Request hello = AwaitHello();
  EXPECT_EQ(hello.fence().incarnation(), 2u);
  ASSERT_EQ(hello.hello().running_size(), 1);
  const v1::RunningGeneration& running = hello.hello().running(0);
  EXPECT_EQ(running.job_id(), kJob);
  EXPECT_THAT(running.running_ranks(), ElementsAre(0));
  ASSERT_EQ(running.exits_size(), 1);
  EXPECT_EQ(running.exits(0).exit_code(), 6);
  EXPECT_EQ(::kill(rank, 0), 0);
  // Said again: it might have happened after Hello was written.
  EXPECT_EQ(AwaitRankExit().rank(), 1);
  Stop(milliseconds(0), "enough");
  EXPECT_EQ(AwaitRankExit().rank(), 0);
  EXPECT_TRUE(AwaitGone(rank));
}

TEST_F(DaemonTest, ReportsWhatEndedWhileItWasAway) {
  RunOnDaemon("echo $$ > pid; while [ ! -e go ]; do sleep 0.01; done; exit 9");
  const pid_t rank = AwaitPid(directory_ / "pid");
  ::kill(daemon_, SIGKILL);
  testing::AwaitExit(daemon_);
  ASSERT_TRUE(os::WriteFileAtomically(directory_ / "go", "").ok());
  EXPECT_TRUE(AwaitGone(rank));
  StartDaemon();
  const Request hello = AwaitHello();
  ASSERT_EQ(hello.hello().running_size(), 1);
  ASSERT_EQ(hello.hello().running(0).exits_size(), 1);
  EXPECT_EQ(hello.hello().running(0).exits(0).exit_code(), 9);
}

TEST_F(DaemonTest, ADeadSupervisorIsAnExitOfItsRanks) {
  StartDaemon();
  AwaitHello();
  // The grandchild has left the session, and is nobody's child when the supervisor dies.
  Prepare(
      PrepareFor("setsid -f sh -c 'echo $$ > grandchild; exec sleep 1000';"
                 "echo $PPID > supervisor; sleep 1000"));
  Start();
  const pid_t grandchild = AwaitPid(directory_ / "grandchild");
  const pid_t supervisor = AwaitPid(directory_ / "supervisor");
  ::kill(supervisor, SIGKILL);
  const v1::RankExit exit = AwaitRankExit();
  EXPECT_EQ(exit.signal(), SIGKILL);
  EXPECT_FALSE(exit.teardown());
  EXPECT_THAT(exit.error_message(), HasSubstr("supervisor"));
  EXPECT_TRUE(coordinator_->AwaitKind(Request::kGenerationEnded));
  EXPECT_TRUE(AwaitGone(grandchild));
}

TEST_F(DaemonTest, SigtermStopsTheRanksAndSaysGoodbye) {
  RunOnDaemon("echo $$ > pid; exec sleep 1000");
  const pid_t rank = AwaitPid(directory_ / "pid");
  ::kill(daemon_, SIGTERM);
  const v1::RankExit exit = AwaitRankExit();
  EXPECT_EQ(exit.signal(), SIGTERM);
  EXPECT_EQ(exit.error_message(), "it got SIGTERM");
  EXPECT_TRUE(coordinator_->AwaitKind(Request::kGenerationEnded));
  EXPECT_TRUE(coordinator_->AwaitKind(Request::kGoodbye));
  EXPECT_EQ(testing::AwaitExit(daemon_), 0);
  daemon_ = -1;
  EXPECT_TRUE(AwaitGone(rank));
}

TEST_F(DaemonTest, TheLifelineEndsTheDaemonAndItsRanks) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  os::UniqueFd read_end(pipe[0]), write_end(pipe[1]);
  os::SpawnOptions spawn;
  spawn.argv = {testing::WorkerProgram(),
                "--coordinator",
                coordinator_->address(),
                "--state-dir",
                State(""),
                "--kill-at-once-on-lifeline",
                "--lifeline-fd",
                std::to_string(read_end.get()),
                "--lifeline-of",
                "the launcher"};
  spawn.keep_fds = {read_end.get()};
  const auto pid = os::Spawn(spawn);
  ASSERT_TRUE(pid.ok());
  daemon_ = *pid;
  AwaitHello();
  Prepare(PrepareFor("trap '' TERM; echo $$ > pid; while :; do sleep 1000; done"));
  Start();
  const pid_t rank = AwaitPid(directory_ / "pid");
  write_end.reset();
  EXPECT_TRUE(AwaitGone(rank));
  const v1::RankExit exit = AwaitRankExit();
  EXPECT_TRUE(exit.teardown());
  EXPECT_EQ(exit.error_message(), "the launcher has ended");
  EXPECT_GE(testing::AwaitExit(daemon_), 0);
  daemon_ = -1;
}

TEST_F(DaemonTest, WithoutACoordinatorRanksEndAfterTheOrphanTimeout) {
  StartDaemon({"--orphan-timeout", "300ms"});
  AwaitHello();
  Prepare(PrepareFor("echo $$ > pid; exec sleep 1000"));
  Start();
  const pid_t rank = AwaitPid(directory_ / "pid");
  const std::string address = coordinator_->address();
  coordinator_->Shutdown();
  EXPECT_TRUE(AwaitGone(rank));
  // A coordinator that comes back learns of it.
  coordinator_ =
      std::make_unique<FakeCoordinator>(FakeCoordinator::Options{.term = 2, .address = address});
  const Request hello = AwaitHello();
  ASSERT_EQ(hello.hello().running_size(), 1);
  ASSERT_EQ(hello.hello().running(0).exits_size(), 1);
  EXPECT_TRUE(hello.hello().running(0).exits(0).teardown());
  EXPECT_TRUE(hello.hello().running(0).exits(0).orphaned());
}

// Its answers are late, its commands are not.
TEST_F(DaemonTest, RanksThatStartAfterTheOrphanTimeoutEndAsOrphansToo) {
  StartDaemon({"--orphan-timeout", "300ms"});
  AwaitHello();
  coordinator_->FallSilent();
  coordinator_->Forget();
  const auto await_heartbeats = [&](int number) {
    while (number-- > 0) ASSERT_TRUE(coordinator_->AwaitKind(Request::kHeartbeat));
  };
  await_heartbeats(5);
  Prepare(PrepareFor("exec sleep 1000"));
  // What is prepared has no ranks yet.
  await_heartbeats(12);
  Start();
  const v1::RankExit exit = AwaitRankExit();
  EXPECT_EQ(exit.signal(), SIGTERM);
  EXPECT_TRUE(exit.teardown());
  EXPECT_TRUE(exit.orphaned());
}

TEST_F(DaemonTest, RanksLiveThroughACoordinatorsRestart) {
  RunOnDaemon("echo $$ > pid; exec sleep 1000");
  const pid_t rank = AwaitPid(directory_ / "pid");
  const std::string address = coordinator_->address();
  coordinator_->Shutdown();
  coordinator_ =
      std::make_unique<FakeCoordinator>(FakeCoordinator::Options{.term = 2, .address = address});
  const Request hello = AwaitHello();
  ASSERT_EQ(hello.hello().running_size(), 1);
  EXPECT_THAT(hello.hello().running(0).running_ranks(), ElementsAre(0));
  EXPECT_EQ(::kill(rank, 0), 0);
  EXPECT_EQ(hello.fence().incarnation(), 1u);
}

TEST_F(DaemonTest, WhatTheCoordinatorDoesNotKnowIsKilled) {
  RunOnDaemon("trap '' TERM; echo $$ > pid; while :; do sleep 1000; done");
  const pid_t rank = AwaitPid(directory_ / "pid");
  v1::OpenSessionResponse forget;
  forget.mutable_forget();
  coordinator_->Send(forget, kJob, 1);
  EXPECT_TRUE(AwaitGone(rank));
  // The coordinator may hold its slots until it hears that.
  const auto ended = coordinator_->AwaitKind(Request::kGenerationEnded);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->fence().generation(), 1u);
}

TEST_F(DaemonTest, StreamsALogFromAnOffsetAndFollowsItToItsEnd) {
  StartDaemon();
  AwaitHello();
  Prepare(PrepareFor("echo one; echo two; while [ ! -e go ]; do sleep 0.01; done; echo three"));
  v1::OpenSessionResponse open;
  v1::OpenLog& log = *open.mutable_open_log();
  log.set_stream_id("followed");
  log.set_job_id(kJob);
  log.set_generation(1);
  log.set_stream(v1::LOG_STREAM_STDOUT);
  log.set_follow(true);
  log.set_offset(4);
  // Asked for before the file exists.
  coordinator_->Send(open, kJob, 1);
  Start();
  EXPECT_EQ(coordinator_->AwaitUpload("followed", [](const auto& u) { return u.data == "two\n"; })
                .first_offset,
            4u);
  log.set_stream_id("tail");
  log.set_follow(false);
  log.set_offset(0);
  log.set_tail_lines(1);
  coordinator_->Send(open, kJob, 1);
  const auto tail = coordinator_->AwaitUpload("tail", [](const auto& u) { return u.ended; });
  EXPECT_EQ(tail.data, "two\n");
  EXPECT_EQ(tail.first_offset, 4u);
  ASSERT_TRUE(os::WriteFileAtomically(directory_ / "go", "").ok());
  const auto followed =
      coordinator_->AwaitUpload("followed", [](const auto& u) { return u.ended; });
  EXPECT_EQ(followed.data, "two\nthree\n");
  log.set_stream_id("unknown");
  log.set_job_id("no-such-job");
  coordinator_->Send(open, kJob, 1);
  EXPECT_THAT(coordinator_->AwaitUpload("unknown", [](const auto& u) { return u.ended; }).error,
              HasSubstr("there are no logs of generation 1"));
}

TEST_F(DaemonTest, LogsThatWereRemovedAreToldAndNamed) {
  StartDaemon({"--keep-logs", "100K"});
  AwaitHello();
  for (const uint64_t generation : {1, 2}) {
    v1::Prepare prepare = PrepareFor("head -c 80000 /dev/zero | tr '\\0' x");
    prepare.set_submitter("bob");
    ASSERT_TRUE(Prepare(prepare, generation).ok());
    Start(generation);
    ASSERT_TRUE(coordinator_->AwaitKind(Request::kGenerationEnded));
  }
  const auto said = coordinator_->AwaitKind(Request::kLogsRemoved);
  ASSERT_TRUE(said);
  const v1::LogsRemoved& removed = said->logs_removed();
  EXPECT_EQ(removed.submitter(), "bob");
  EXPECT_EQ(removed.job_id(), kJob);
  EXPECT_EQ(removed.generations(), 1u);
  EXPECT_GE(removed.bytes(), 80'000u);
  EXPECT_EQ(removed.keep_bytes(), 100u << 10);
  v1::OpenSessionResponse open;
  open.mutable_open_log()->set_stream_id("gone");
  open.mutable_open_log()->set_job_id(kJob);
  open.mutable_open_log()->set_generation(1);
  open.mutable_open_log()->set_stream(v1::LOG_STREAM_STDOUT);
  coordinator_->Send(open, kJob, 1);
  EXPECT_THAT(coordinator_->AwaitUpload("gone", [](const auto& u) { return u.ended; }).error,
              HasSubstr("the logs of generation 1 were removed at 20"));
}

TEST_F(DaemonTest, FilesThatARankHasReplacedAreNeitherFollowedNorWaitedFor) {
  StartDaemon();
  AwaitHello();
  Prepare(
      PrepareFor("cd $(dirname $TORCHELASTIC_ERROR_FILE) && rm 0.stdout.log 0.stderr.log && "
                 "mkfifo 0.stdout.log 0.error.json && ln -s /etc/passwd 0.stderr.log; exit 3"));
  Start();
  const v1::RankExit exit = AwaitRankExit();
  EXPECT_EQ(exit.exit_code(), 3);
  EXPECT_EQ(exit.last_lines_size(), 0);
  EXPECT_THAT(exit.error_message(), HasSubstr("not a regular file"));
  for (const auto stream : {v1::LOG_STREAM_STDOUT, v1::LOG_STREAM_STDERR}) {
    v1::OpenSessionResponse open;
    v1::OpenLog& log = *open.mutable_open_log();
    log.set_stream_id(v1::LogStream_Name(stream));
    log.set_job_id(kJob);
    log.set_generation(1);
    log.set_stream(stream);
    log.set_follow(true);
    coordinator_->Send(open, kJob, 1);
    const auto upload =
        coordinator_->AwaitUpload(log.stream_id(), [](const auto& u) { return u.ended; });
    EXPECT_EQ(upload.data, "");
    EXPECT_THAT(upload.error, HasSubstr("not a regular file"));
  }
}

TEST_F(DaemonTest, AStrangersCoordinatorEndsNothingHere) {
  const auto restart = [this](const std::string& cluster_id, uint64_t term) {
    coordinator_.reset();
    coordinator_ = std::make_unique<FakeCoordinator>(FakeCoordinator::Options{
        .term = term, .address = CoordinatorAddress(), .cluster_id = cluster_id});
  };
  restart("ours", 1);
  RunOnDaemon("sleep 600");
  // The stranger has a higher term, as if its state directory were older.
  restart("theirs", 5);
  for (int i = 0; i < 2; ++i) {
    const Request hello = AwaitHello();
    EXPECT_EQ(hello.hello().cluster_id(), "ours");
    EXPECT_EQ(hello.hello().running_size(), 1);
  }
  v1::OpenSessionResponse forget;
  forget.mutable_forget();
  coordinator_->Send(forget, kJob, 1);
  AwaitHello();
  restart("ours", 2);
  const Request hello = AwaitHello();
  ASSERT_EQ(hello.hello().running_size(), 1);
  EXPECT_FALSE(hello.hello().running(0).ended());
  EXPECT_EQ(hello.hello().running(0).running_ranks_size(), 1);
  EXPECT_EQ(hello.hello().running(0).exits_size(), 0);
}

TEST_F(DaemonTest, JoinsAnotherClusterWhenItIsToldTo) {
  coordinator_.reset();
  coordinator_ = std::make_unique<FakeCoordinator>(
      FakeCoordinator::Options{.address = CoordinatorAddress(), .cluster_id = "first"});
  StartDaemon();
  AwaitHello();
  ASSERT_TRUE(Eventually([this] {
    const auto node = os::ReadFile(State("/node.json"));
    return node.ok() && node->find("first") != std::string::npos;
  }));
  ::kill(daemon_, SIGTERM);
  testing::AwaitExit(std::exchange(daemon_, -1));
  coordinator_.reset();
  coordinator_ = std::make_unique<FakeCoordinator>(
      FakeCoordinator::Options{.address = CoordinatorAddress(), .cluster_id = "second"});
  StartDaemon();
  testing::AwaitExit(std::exchange(daemon_, -1));
  StartDaemon({"--join-cluster", "second"});
  EXPECT_EQ(AwaitHello().hello().cluster_id(), "first");
  EXPECT_EQ(AwaitHello().hello().cluster_id(), "second");
}

TEST_F(DaemonTest, ARunningRanksLogStaysWithinItsLimitAndReadersHearWhatIsGone) {
  StartDaemon({"--log-limit", "64K"});
  AwaitHello();
  Prepare(PrepareFor("seq 1 60000; echo $$ > pid; exec sleep 1000"));
  Start();
  AwaitPid(directory_ / "pid");
  std::string written;
  for (int i = 1; i <= 60000; ++i) written += std::to_string(i) + "\n";
  const auto size = static_cast<off_t>(written.size());
  struct stat info = {};
  EXPECT_TRUE(
      Eventually([&] { return ::stat(Stdout(0).c_str(), &info) == 0 && info.st_size == size; }));
  // It is looked at after each 4 KiB.
  EXPECT_LE(info.st_blocks * 512, (64 << 10) + (8 << 10));
  v1::OpenSessionResponse open;
  v1::OpenLog& log = *open.mutable_open_log();
  log.set_stream_id("all");
  log.set_job_id(kJob);
  log.set_generation(1);
  log.set_stream(v1::LOG_STREAM_STDOUT);
  coordinator_->Send(open, kJob, 1);
  const auto kept = coordinator_->AwaitUpload("all", [](const auto& u) { return u.ended; });
  EXPECT_GE(kept.data.size(), size_t{32} << 10);
  EXPECT_EQ(kept.first_offset + kept.data.size(), written.size());
  EXPECT_EQ(kept.data, written.substr(kept.first_offset));
  EXPECT_EQ(kept.dropped, kept.first_offset);
  EXPECT_GT(kept.largest, size_t{4096});
  log.set_stream_id("of many");
  log.set_chunk_bytes(1024);
  coordinator_->Send(open, kJob, 1);
  const auto small = coordinator_->AwaitUpload("of many", [](const auto& u) { return u.ended; });
  EXPECT_EQ(small.data, kept.data);
  EXPECT_EQ(small.largest, 1024u);
  log.set_stream_id("last");
  log.set_tail_lines(2);
  coordinator_->Send(open, kJob, 1);
  const auto last = coordinator_->AwaitUpload("last", [](const auto& u) { return u.ended; });
  EXPECT_EQ(last.data, "59999\n60000\n");
  EXPECT_EQ(last.dropped, 0u);
}

TEST_F(DaemonTest, TheRunningLogsOfAHostAreSharedByTheStreamsThatItsSlotsMayHave) {
  // Four slots with two streams each.
  StartDaemon({"--slots", "4", "--running-logs", "1M"});
  constexpr uint64_t kShare = 128 << 10;
  AwaitHello();
  Prepare(PrepareFor("seq 1 60000; echo $$ > pid.$RANK; exec sleep 1000", 2));
  Start();
  std::string written;
  for (int i = 1; i <= 60000; ++i) written += std::to_string(i) + "\n";
  for (const int rank : {0, 1}) {
    AwaitPid(directory_ / ("pid." + std::to_string(rank)));
    struct stat info = {};
    // A sixteenth may lie beyond the limit, for it is not looked at more often.
    EXPECT_TRUE(Eventually([&] {
      return ::stat(Stdout(rank).c_str(), &info) == 0 &&
             static_cast<size_t>(info.st_size) == written.size() &&
             static_cast<uint64_t>(info.st_blocks) * 512 <= kShare + kShare / 8;
    })) << info.st_blocks;
    v1::OpenSessionResponse open;
    v1::OpenLog& log = *open.mutable_open_log();
    log.set_stream_id(std::to_string(rank));
    log.set_job_id(kJob);
    log.set_generation(1);
    log.set_rank(rank);
    log.set_stream(v1::LOG_STREAM_STDOUT);
    coordinator_->Send(open, kJob, 1);
    const auto kept =
        coordinator_->AwaitUpload(log.stream_id(), [](const auto& u) { return u.ended; });
    // The last half at least; readers hear how much went.
    EXPECT_GE(kept.data.size(), kShare / 2);
    EXPECT_EQ(kept.data, written.substr(written.size() - kept.data.size()));
    EXPECT_EQ(kept.dropped, written.size() - kept.data.size());
  }
}

TEST_F(DaemonTest, ALimitThatTheKernelDoesNotGiveIsLoggedAtTheStart) {
  const std::string log = directory_ / "log";
  log_ = os::UniqueFd(::open(log.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  StartDaemon({"--limits", "memory,pids"});
  const auto kept = AwaitHello().hello().resources().limits();
  std::string text;
  ASSERT_TRUE(Eventually([&] {
    text = os::ReadFile(log).value_or("");
    return text.find("joined the coordinator") != std::string::npos;
  }));
  bool all = true;
  for (const std::string limit : {"memory", "pids"}) {
    const bool is_kept = std::find(kept.begin(), kept.end(), limit) != kept.end();
    // With the reason.
    EXPECT_EQ(text.find(limit + " (") == std::string::npos, is_kept) << text;
    all = all && is_kept;
  }
  EXPECT_EQ(text.find("jobs are not held to every limit here") == std::string::npos, all) << text;
  // Nobody asked for it.
  EXPECT_THAT(text, ::testing::Not(HasSubstr("cpu (")));
}

class DaemonThatStopsTest : public DaemonTest {
 protected:
  // One rank that goes on in process, told to stop it writes ended_.
  void StartRank() {
    v1::Prepare prepare =
        PrepareFor("trap 'echo x > " + ended_ +
                   "; exit 0' TERM; echo $MESHRUN_TOKEN; echo $MESHRUN_AGENT; while true; do sleep "
                   "0.01; done");
    prepare.mutable_spec()->set_max_restarts(1);
    *prepare.mutable_spec()->mutable_kill_grace() = ToProtoDuration(std::chrono::minutes(10));
    Prepare(prepare);
    Start();
    std::string token, address;
    ASSERT_TRUE(Eventually([&] {
      const auto output = os::ReadFile(Stdout(0));
      if (!output.ok()) return false;
      std::istringstream lines(*output);
      return std::getline(lines, token) && std::getline(lines, address) && output->ends_with('\n');
    }));
    const auto agent =
        v1::AgentService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    v1::RegisterRankRequest request;
    request.mutable_fence()->set_job_id(kJob);
    request.mutable_fence()->set_generation(1);
    request.set_token(token);
    request.set_in_process(true);
    grpc::ClientContext context;
    rpc::SetTimeout(context, testing::kPatience);
    v1::RegisterRankResponse response;
    ASSERT_TRUE(agent->RegisterRank(&context, request, &response).ok());
    ASSERT_TRUE(coordinator_->AwaitKind(Request::kRanksJoined));
  }
  bool ended() const { return std::filesystem::exists(ended_); }
  void StopRank() {
    v1::OpenSessionResponse stop;
    *stop.mutable_stop()->mutable_grace() = ToProtoDuration(std::chrono::seconds(5));
    coordinator_->Send(stop, kJob, 1);
    EXPECT_EQ(AwaitRankExit().exit_code(), 0);
    EXPECT_TRUE(ended());
  }

  const std::string ended_ = directory_ / "ended";
};

TEST_F(DaemonThatStopsTest, RanksThatGoOnInProcessAreMovedFirst) {
  StartDaemon();
  AwaitHello();
  StartRank();
  ::kill(daemon_, SIGTERM);
  // It says so, and waits for the coordinator's word.
  ASSERT_TRUE(
      coordinator_->Await([](const Request& message) { return message.heartbeat().draining(); }));
  EXPECT_FALSE(ended());
  StopRank();
}

TEST_F(DaemonThatStopsTest, ACoordinatorThatIsBeingRestartedMovesThemToo) {
  const std::string log = directory_ / "log";
  log_ = os::UniqueFd(::open(log.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  StartDaemon();
  AwaitHello();
  StartRank();
  const std::string address = coordinator_->address();
  coordinator_->Shutdown();
  ::kill(daemon_, SIGTERM);
  ASSERT_TRUE(Eventually([&] { return os::ReadFile(log)->find("SIGTERM") != std::string::npos; }));
  coordinator_ =
      std::make_unique<FakeCoordinator>(FakeCoordinator::Options{.term = 2, .address = address});
  const Request hello = AwaitHello();
  EXPECT_TRUE(hello.hello().draining());
  ASSERT_EQ(hello.hello().running_size(), 1);
  EXPECT_EQ(hello.hello().running(0).exits_size(), 0);
  EXPECT_FALSE(ended());
  StopRank();
}

TEST_F(DaemonThatStopsTest, WithoutACoordinatorTheyEndAfterAWhile) {
  StartDaemon();
  AwaitHello();
  StartRank();
  coordinator_->Shutdown();
  ::kill(daemon_, SIGTERM);
  EXPECT_EQ(testing::AwaitExit(daemon_), 0);
  daemon_ = -1;
  EXPECT_TRUE(ended());
}

TEST_F(DaemonTest, ForwardsProgress) {
  StartDaemon();
  AwaitHello();
  Prepare(PrepareFor(
      "python3 -c \"import os, socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); "
      "s.sendto(b'{\\\"step\\\": 5, \\\"loss\\\": 0.5}', os.environ['MESHRUN_REPORT'])\""));
  Start();
  const auto report = coordinator_->AwaitKind(Request::kProgressReport);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->progress_report().progress().at(0).step(), 5);
  EXPECT_EQ(report->progress_report().progress().at(0).loss(), 0.5);
  EXPECT_GT(report->progress_report().progress().at(0).step_at_nanos(), 0) << "by its host's clock";
}

TEST_F(DaemonTest, AnswersRanksThatShowTheirToken) {
  StartDaemon();
  AwaitHello();
  // Told to stop it waits for the file, so that the watch is there before the end.
  const std::string released = directory_ / "released";
  Prepare(PrepareFor("trap 'until [ -e " + released +
                     " ]; do sleep 0.01; done; exit 0' TERM; echo $MESHRUN_TOKEN; "
                     "echo $MESHRUN_AGENT; while true; do sleep 0.01; done"));
  Start();
  std::string token, address;
  ASSERT_TRUE(Eventually([&] {
    const auto output = os::ReadFile(Stdout(0));
    if (!output.ok()) return false;
    std::istringstream lines(*output);
    return std::getline(lines, token) && std::getline(lines, address) && output->ends_with('\n');
  }));
  // It lies in a directory of this job's own.
  const std::string socket = address.substr(std::strlen("unix:"));
  const std::string job_directory = socket.substr(0, socket.rfind('/'));
  struct stat info;
  ASSERT_EQ(::stat(job_directory.c_str(), &info), 0) << job_directory;
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  EXPECT_EQ(info.st_uid, ::geteuid());
  EXPECT_THAT(job_directory, HasSubstr("/j/"));
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  const auto agent = v1::AgentService::NewStub(channel);
  const auto store = v1::StoreService::NewStub(channel);
  v1::RegisterRankRequest request;
  request.mutable_fence()->set_job_id(kJob);
  request.mutable_fence()->set_generation(1);
  const auto registered = [&](v1::RegisterRankResponse* response) {
    grpc::ClientContext context;
    rpc::SetTimeout(context, testing::kPatience);
    return agent->RegisterRank(&context, request, response).error_code();
  };
  v1::RegisterRankResponse response;
  request.set_token("guessed");
  EXPECT_EQ(registered(&response), grpc::StatusCode::UNAUTHENTICATED);
  request.set_token(token);
  EXPECT_EQ(registered(&response), grpc::StatusCode::OK);
  EXPECT_EQ(response.master_addr(), "127.0.0.1");
  EXPECT_EQ(response.master_port(), 20001u);
  EXPECT_EQ(response.node_name(), "here");
  request.set_rank(1);
  EXPECT_EQ(registered(&response), grpc::StatusCode::NOT_FOUND);

  // The store is the coordinator's; the world table is asked for once.
  const auto get = [&](const std::string& with_token, v1::GetValuesResponse* values) {
    grpc::ClientContext context;
    rpc::SetTimeout(context, testing::kPatience);
    context.AddMetadata("meshrun-token", with_token);
    v1::GetValuesRequest get;
    *get.mutable_fence() = request.fence();
    get.add_keys("k");
    return store->GetValues(&context, get, values).error_code();
  };
  v1::GetValuesResponse values;
  EXPECT_EQ(get("guessed", &values), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(coordinator_->store_calls(), 0);
  EXPECT_EQ(get(token, &values), grpc::StatusCode::OK);
  EXPECT_THAT(values.values(), ElementsAre("value of k"));
  EXPECT_EQ(coordinator_->last_store_fence().incarnation(), 1u);
  // A rank's word that it has finished is the coordinator's, too.
  const auto finish = [&](const std::string& with_token) {
    grpc::ClientContext context;
    rpc::SetTimeout(context, testing::kPatience);
    context.AddMetadata("meshrun-token", with_token);
    v1::ReportFinishedRequest report;
    *report.mutable_fence() = request.fence();
    v1::ReportFinishedResponse taken;
    return store->ReportFinished(&context, report, &taken).error_code();
  };
  const int calls = coordinator_->store_calls();
  EXPECT_EQ(finish("guessed"), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(coordinator_->store_calls(), calls);
  EXPECT_EQ(finish(token), grpc::StatusCode::OK);
  EXPECT_EQ(coordinator_->store_calls(), calls + 1);
  EXPECT_EQ(coordinator_->last_store_fence().job_id(), kJob);
  EXPECT_EQ(coordinator_->last_store_fence().incarnation(), 1u);
  // Cached after the first answer has been taken in.
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    context.AddMetadata("meshrun-token", token);
    v1::GetWorldRequest ask;
    *ask.mutable_fence() = request.fence();
    v1::GetWorldResponse world;
    const int before = coordinator_->store_calls();
    EXPECT_TRUE(store->GetWorld(&context, ask, &world).ok());
    EXPECT_EQ(world.world().addresses(0).node_id(), "n");
    return coordinator_->store_calls() == before;
  }));

  // News and a stop reach the rank's watch with its reason, and the end of the generation ends the
  // watch.
  grpc::ClientContext context;
  v1::WatchGenerationRequest watch;
  *watch.mutable_fence() = request.fence();
  watch.set_token(token);
  const auto reader = agent->WatchGeneration(&context, watch);
  v1::OpenSessionResponse told;
  told.mutable_peer_news()->add_left(7);
  coordinator_->Send(told, kJob, 1);
  v1::WatchGenerationResponse event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_THAT(event.news().left(), ElementsAre(7));
  // A coordinator repeats a verdict to a host that was away. Its ranks hear it once.
  told.Clear();
  for (const int number : {3, 3, 4}) {
    told.mutable_peer_news()->clear_verdicts();
    told.mutable_peer_news()->add_verdicts()->set_number(number);
    coordinator_->Send(told, kJob, 1);
  }
  std::vector<uint64_t> verdicts;
  while (verdicts.empty() || verdicts.back() != 4) {
    ASSERT_TRUE(reader->Read(&event));
    for (const auto& verdict : event.news().verdicts()) verdicts.push_back(verdict.number());
  }
  EXPECT_THAT(verdicts, ElementsAre(3, 4));
  Stop(milliseconds(5000), "a peer failed");
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_TRUE(event.stopping());
  EXPECT_EQ(event.reason(), "a peer failed");
  // A late watcher hears which ranks are gone.
  {
    grpc::ClientContext late;
    const auto again = agent->WatchGeneration(&late, watch);
    ASSERT_TRUE(again->Read(&event));
    EXPECT_THAT(event.news().left(), ElementsAre(7));
    // Its daemon may have been told before the rank connected again.
    ASSERT_EQ(event.news().verdicts_size(), 2);
    EXPECT_EQ(event.news().verdicts(1).number(), 4u);
    late.TryCancel();
    static_cast<void>(again->Finish());
  }
  // What the rank is blocked in goes to the coordinator.
  {
    grpc::ClientContext call;
    v1::ReportWaitRequest report;
    *report.mutable_fence() = request.fence();
    report.set_token(token);
    report.mutable_report()->add_calls()->set_sequence(17);
    v1::ReportWaitResponse ignored;
    EXPECT_TRUE(agent->ReportWait(&call, report, &ignored).ok());
    const auto reported = coordinator_->AwaitKind(Request::kWaitReport);
    ASSERT_TRUE(reported);
    EXPECT_EQ(reported->wait_report().calls(0).sequence(), 17u);
    EXPECT_EQ(reported->fence().generation(), 1u);
    // A session names the members of a group once.
    v1::WaitCall& blocked = *report.mutable_report()->mutable_calls(0);
    blocked.set_group("world");
    for (int member = 0; member < 3; ++member) blocked.add_members(member);
    uint64_t id = 0;
    for (const int members : {3, 0}) {
      grpc::ClientContext again;
      blocked.set_sequence(18 + members);
      EXPECT_TRUE(agent->ReportWait(&again, report, &ignored).ok());
      const auto told = coordinator_->AwaitKind(Request::kWaitReport);
      ASSERT_TRUE(told);
      EXPECT_EQ(told->wait_report().calls(0).members_size(), members);
      EXPECT_EQ(told->wait_report().calls(0).sequence(), 18u + members);
      if (members == 0) {
        EXPECT_EQ(told->wait_report().calls(0).group_id(), id);
      }
      id = told->wait_report().calls(0).group_id();
      EXPECT_NE(id, 0u);
    }
    grpc::ClientContext wrong;
    report.mutable_report()->set_rank(1);
    EXPECT_EQ(agent->ReportWait(&wrong, report, &ignored).error_code(),
              grpc::StatusCode::NOT_FOUND);
  }
  {
    grpc::ClientContext call;
    v1::WithdrawWaitRequest withdraw;
    *withdraw.mutable_fence() = request.fence();
    withdraw.set_token(token);
    v1::WithdrawWaitResponse ignored;
    EXPECT_TRUE(agent->WithdrawWait(&call, withdraw, &ignored).ok());
    EXPECT_TRUE(coordinator_->AwaitKind(Request::kWaitWithdrawn));
  }
  ASSERT_TRUE(os::WriteFileAtomically(released, "").ok());
  // Its own end, then the generation's.
  EXPECT_TRUE(reader->Read(&event));
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(get(token, &values), grpc::StatusCode::FAILED_PRECONDITION);
  v1::OpenSessionResponse forget;
  forget.mutable_forget();
  coordinator_->Send(forget, kJob, 1);
  EXPECT_TRUE(Eventually([&] { return ::access(job_directory.c_str(), F_OK) != 0; }));
}

TEST_F(DaemonTest, EveryDirectoryAndFileIsItsUsersAlone) {
  RunOnDaemon("echo $$ > pid; exec sleep 1000");
  AwaitPid(directory_ / "pid");
  int seen = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(State(""))) {
    struct stat info;
    if (::lstat(entry.path().c_str(), &info) != 0) {
      // A file that was being written: it has its own name by now.
      ASSERT_EQ(errno, ENOENT) << entry.path();
      continue;
    }
    // A socket's own mode counts for nothing below a directory that nobody else can enter.
    if (S_ISSOCK(info.st_mode)) continue;
    EXPECT_EQ(info.st_mode & 077, 0u) << entry.path();
    ++seen;
  }
  EXPECT_GT(seen, 10);
}

TEST_F(DaemonTest, AStateDirectoryThatOthersCanEnterIsAWrongCall) {
  ASSERT_EQ(::mkdir(State("").c_str(), 0755), 0);
  ASSERT_EQ(::chmod(State("").c_str(), 0755), 0);
  StartDaemon();
  EXPECT_EQ(WEXITSTATUS(testing::AwaitExit(daemon_)), 2);
  daemon_ = -1;
}

TEST_F(DaemonTest, ASecondDaemonOnTheSameStateSaysSo) {
  StartDaemon();
  AwaitHello();
  const pid_t first = daemon_;
  StartDaemon();
  EXPECT_EQ(WEXITSTATUS(testing::AwaitExit(daemon_)), 1);
  daemon_ = first;
}

TEST_F(DaemonTest, ATcpAddressNeedsTls) {
  for (const char* address : {"192.0.2.1:7480", "127.0.0.1:7480", "localhost:7480"}) {
    os::SpawnOptions spawn;
    spawn.argv = {testing::WorkerProgram(), "--coordinator", address, "--state-dir", State("")};
    const auto pid = os::Spawn(spawn);
    ASSERT_TRUE(pid.ok());
    EXPECT_EQ(WEXITSTATUS(testing::AwaitExit(*pid)), 2) << address;
  }
}

TEST_F(DaemonTest, ASocketThatAnotherUserCouldHaveMadeIsNotCalled) {
  const std::string directory = directory_ / "open";
  ASSERT_EQ(::mkdir(directory.c_str(), 0700), 0);
  coordinator_ = std::make_unique<FakeCoordinator>(
      FakeCoordinator::Options{.address = "unix:" + directory + "/c.sock"});
  ASSERT_EQ(::chmod(directory.c_str(), 0755), 0);
  StartDaemon();
  EXPECT_EQ(WEXITSTATUS(testing::AwaitExit(daemon_)), 2);
  daemon_ = -1;
  EXPECT_EQ(coordinator_->received(), 0u);
}

TEST_F(DaemonTest, AnAddressIsCheckedBeforeEachSession) {
  const std::string directory = directory_ / "open";
  ASSERT_EQ(::mkdir(directory.c_str(), 0700), 0);
  const std::string address = "unix:" + directory + "/c.sock";
  coordinator_ = std::make_unique<FakeCoordinator>(FakeCoordinator::Options{.address = address});
  log_.reset(::open((directory_ / "log").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  StartDaemon();
  AwaitHello();
  ASSERT_EQ(::chmod(directory.c_str(), 0755), 0);
  coordinator_->Shutdown();
  coordinator_ =
      std::make_unique<FakeCoordinator>(FakeCoordinator::Options{.term = 2, .address = address});
  EXPECT_TRUE(Eventually([&] {
    return os::ReadFile(directory_ / "log")->find("is open to other users") != std::string::npos;
  }));
  EXPECT_EQ(coordinator_->received(), 0u);
  ASSERT_EQ(::chmod(directory.c_str(), 0700), 0);
  AwaitHello();
}

}  // namespace
}  // namespace meshrun::worker
