// The supervisor process, with real ranks.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "core/os/boot_time.h"
#include "core/os/core_set.h"
#include "core/os/files.h"
#include "core/os/process_stat.h"
#include "core/proto_time.h"
#include "core/text.h"
#include "tests/worker/support/supervisor_harness.h"

namespace meshrun::worker {
namespace {

using std::chrono::milliseconds;
using testing::AwaitGone;
using testing::AwaitPid;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::SupervisorHarness;

using Response = v1::SupervisorResponse;

TEST(SupervisorTest, ReportsExitCodeWithTheLastLinesOfStderr) {
  SupervisorHarness supervisor;
  supervisor.AddRank("echo said to stdout; echo first >&2; echo second >&2; exit 3");
  supervisor.AddRank("echo only stdout; exit 4");
  supervisor.AddRank("echo all is well");
  supervisor.Spawn();
  EXPECT_FALSE(supervisor.Connect().started());
  supervisor.Start();
  const auto exits = supervisor.AwaitExits(3);
  EXPECT_EQ(exits[0].exit_code(), 3);
  EXPECT_EQ(exits[0].signal(), 0);
  EXPECT_FALSE(exits[0].teardown());
  EXPECT_THAT(exits[0].last_lines(), ElementsAre("first", "second"));
  EXPECT_THAT(exits[1].last_lines(), ElementsAre("only stdout"));
  EXPECT_EQ(exits[2].exit_code(), 0);
  EXPECT_THAT(exits[2].last_lines(), ElementsAre());
  EXPECT_TRUE(supervisor.Await(Response::kEnded));
  supervisor.Release();
  EXPECT_EQ(supervisor.AwaitExit(), 0);
}

TEST(SupervisorTest, ReportsTheSignalThatEndedARank) {
  SupervisorHarness supervisor;
  supervisor.AddRank("kill -SEGV $$");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  EXPECT_EQ(supervisor.AwaitExits(1)[0].signal(), SIGSEGV);
}

TEST(SupervisorTest, GivesRanksTheirOwnSessionAndTheVariablesOfStart) {
  SupervisorHarness supervisor;
  supervisor.AddRank("echo $MASTER_PORT; ps -o sid= -p $$ | tr -d ' '; echo $$");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  supervisor.AwaitExits(1);
  const auto output = os::ReadFile(supervisor.Path("0.stdout.log"));
  ASSERT_TRUE(output.ok());
  std::vector<std::string> lines;
  std::stringstream stream(*output);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "20001");
  EXPECT_EQ(lines[1], lines[2]);
}

TEST(SupervisorTest, RunsARankAndWhatItStartsOnItsCoresAlone) {
  SupervisorHarness supervisor;
  const os::CoreSet all = os::OwnCores();
  const std::string show = "sh -c 'grep Cpus_allowed_list /proc/self/status'";
  supervisor.AddRank(show).add_cores(static_cast<uint32_t>(all.back()));
  supervisor.AddRank(show);
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  supervisor.AwaitExits(2);
  const auto bound = os::ReadFile(supervisor.Path("0.stdout.log"));
  const auto free = os::ReadFile(supervisor.Path("1.stdout.log"));
  ASSERT_TRUE(bound.ok() && free.ok());
  EXPECT_EQ(*bound, "Cpus_allowed_list:\t" + std::to_string(all.back()) + "\n");
  EXPECT_EQ(*free, "Cpus_allowed_list:\t" + FormatRanks(all) + "\n");
}

TEST(SupervisorTest, SaysThatACoreIsNotThere) {
  SupervisorHarness supervisor;
  supervisor.AddRank("true").add_cores(9999);
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  const auto exit = supervisor.AwaitExits(1)[0];
  EXPECT_EQ(exit.exit_code(), 126);
  ASSERT_EQ(exit.last_lines_size(), 1);
  EXPECT_EQ(exit.last_lines(0), "meshrun: cannot start on cores 9999: Invalid argument");
}

TEST(SupervisorTest, PassesASignalToTheNamedProcessAlone) {
  SupervisorHarness supervisor;
  // The pipe opens once the handler is there.
  for (const char* rank : {"0", "1"}) {
    const std::string fifo = supervisor.Path(std::string("ready") + rank);
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    supervisor.AddRank("trap 'exit 7' USR1; echo > " + fifo + "; while :; do sleep 0.02; done");
  }
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  for (const char* rank : {"0", "1"}) {
    (void)os::ReadFile(supervisor.Path(std::string("ready") + rank));
  }
  supervisor.Signal(1, 1, SIGUSR1);
  const auto exit = supervisor.Await(v1::SupervisorResponse::kRankExit);
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->rank_exit().rank(), 1);
  EXPECT_EQ(exit->rank_exit().exit_code(), 7);
  supervisor.Stop(std::chrono::milliseconds(0));
  const auto other = supervisor.Await(v1::SupervisorResponse::kRankExit);
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(other->rank_exit().signal(), SIGKILL);
}

TEST(SupervisorTest, SaysWhyAProgramCannotBeStarted) {
  SupervisorHarness supervisor;
  supervisor.AddRank("").set_argv(0, supervisor.Path("nothing-here"));
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  const auto exit = supervisor.AwaitExits(1)[0];
  EXPECT_EQ(exit.exit_code(), 127);
  ASSERT_EQ(exit.last_lines_size(), 1);
  EXPECT_THAT(exit.last_lines(0), HasSubstr("nothing-here: No such file"));
}

TEST(SupervisorTest, ReadsTheTorchelasticErrorFile) {
  SupervisorHarness supervisor;
  supervisor.AddRank(
      R"(echo '{"message": {"message": "ValueError: loss is nan"}}' > 0.error.json; exit 1)");
  supervisor.AddRank(
      R"(echo '{"message": "out of memory", "timestamp": 1}' > 1.error.json; exit 1)");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  const auto exits = supervisor.AwaitExits(2);
  EXPECT_EQ(exits[0].error_message(), "ValueError: loss is nan");
  EXPECT_EQ(exits[1].error_message(), "out of memory");
}

TEST(SupervisorTest, ADetachedGrandchildDoesNotOutliveTheGeneration) {
  SupervisorHarness supervisor;
  // Its own session, and its parent is gone: nothing but the subreaper ties it to the rank.
  supervisor.AddRank(
      "setsid -f sh -c 'sh -c \"echo \\$\\$ > grandchild; exec sleep 1000\" & exit 0';"
      "while [ ! -s grandchild ]; do :; done");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  const pid_t grandchild = AwaitPid(supervisor.Path("grandchild"));
  ASSERT_GT(grandchild, 0);
  EXPECT_EQ(supervisor.AwaitExits(1)[0].exit_code(), 0);
  EXPECT_TRUE(supervisor.Await(Response::kEnded));
  EXPECT_TRUE(AwaitGone(grandchild));
}

TEST(SupervisorTest, StopTerminatesAndKillsAfterTheGrace) {
  SupervisorHarness supervisor;
  supervisor.AddRank("trap 'exit 7' TERM; echo $$ > 0.pid; while :; do sleep 1000 & wait; done");
  supervisor.AddRank("trap '' TERM; echo $$ > 1.pid; while :; do sleep 1000; done");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  AwaitPid(supervisor.Path("0.pid"));
  AwaitPid(supervisor.Path("1.pid"));
  supervisor.Stop(std::chrono::seconds(2));
  const auto exits = supervisor.AwaitExits(2);
  EXPECT_EQ(exits[0].exit_code(), 7);
  EXPECT_EQ(exits[1].signal(), SIGKILL);
  EXPECT_TRUE(exits[0].teardown());
  EXPECT_TRUE(exits[1].teardown());
  EXPECT_TRUE(supervisor.Await(Response::kEnded));
}

TEST(SupervisorTest, AStopsFirstSignalComesBeforeSigterm) {
  SupervisorHarness supervisor;
  supervisor.AddRank("trap 'exit 7' INT; echo $$ > 0.pid; while :; do sleep 1000 & wait; done");
  supervisor.AddRank(
      "trap '' INT; trap 'exit 8' TERM; echo $$ > 1.pid; while :; do sleep 1000 & wait; done");
  supervisor.AddRank("trap '' INT TERM; echo $$ > 2.pid; while :; do sleep 1000; done");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  for (const char* pid : {"0.pid", "1.pid", "2.pid"}) AwaitPid(supervisor.Path(pid));
  supervisor.Stop(milliseconds(900), SIGINT);
  std::map<int, int> ends;
  for (const v1::RankExit& exit : supervisor.AwaitExits(3)) {
    ends[exit.rank()] = exit.signal() != 0 ? -exit.signal() : exit.exit_code();
  }
  EXPECT_THAT(ends,
              ::testing::ElementsAre(std::pair(0, 7), std::pair(1, 8), std::pair(2, -SIGKILL)));
}

TEST(SupervisorTest, StoppedRanksGoOnWhenTheyAreToEnd) {
  SupervisorHarness supervisor;
  supervisor.AddRank("trap 'exit 7' TERM; echo $$ > pid; while :; do sleep 1000 & wait; done");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  AwaitPid(supervisor.Path("pid"));
  supervisor.Signal(1, 0, SIGSTOP);
  supervisor.Stop(std::chrono::hours(1));
  EXPECT_EQ(supervisor.AwaitExits(1).at(0).exit_code(), 7);
}

TEST(SupervisorTest, AProcessThatARankHasStartedStopsAndGoesOnWithIt) {
  SupervisorHarness supervisor;
  supervisor.AddRank("sleep 1000 & echo $! > pid; wait");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  const pid_t child = AwaitPid(supervisor.Path("pid"));
  const auto state = [child] { return os::ReadProcessStat(child)->state; };
  supervisor.Signal(1, 0, SIGSTOP);
  EXPECT_TRUE(testing::Eventually([&] { return state() == 'T'; }));
  supervisor.Signal(1, 0, SIGCONT);
  EXPECT_TRUE(testing::Eventually([&] { return state() == 'S'; }));
  supervisor.Stop(milliseconds(0));
  EXPECT_TRUE(supervisor.Await(Response::kEnded));
}

TEST(SupervisorTest, ASecondStopDoesNotLengthenTheGrace) {
  SupervisorHarness supervisor;
  supervisor.AddRank("trap '' TERM; echo $$ > pid; while :; do sleep 1000; done");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  AwaitPid(supervisor.Path("pid"));
  supervisor.Stop(milliseconds(300));
  supervisor.Stop(std::chrono::hours(1));
  EXPECT_EQ(supervisor.AwaitExits(1).at(0).signal(), SIGKILL);
}

TEST(SupervisorTest, StopReachesTheProgramBehindAShell) {
  SupervisorHarness supervisor;
  supervisor.AddRank(
      "trap : TERM; sh -c 'trap \"echo got it > got; exit 0\" TERM; echo $$ > pid; "
      "sleep 1000 & wait'; exit 0");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  AwaitPid(supervisor.Path("pid"));
  supervisor.Stop(std::chrono::hours(1));
  supervisor.AwaitExits(1);
  EXPECT_TRUE(testing::Eventually([&] { return os::ReadFile(supervisor.Path("got")).ok(); }));
}

TEST(SupervisorTest, AStopBeforeTheStartEndsTheGeneration) {
  SupervisorHarness supervisor;
  supervisor.AddRank("exit 0");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Stop(milliseconds(0));
  EXPECT_TRUE(supervisor.Await(Response::kEnded));
  supervisor.Start();
  supervisor.Release();
  EXPECT_EQ(supervisor.AwaitExit(), 0);
  EXPECT_FALSE(os::ReadFile(supervisor.Path("0.stdout.log")).ok());
}

TEST(SupervisorTest, TheLifelinesEndKillsEverything) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  os::UniqueFd read_end(pipe[0]), write_end(pipe[1]);
  SupervisorHarness supervisor;
  supervisor.AddRank("trap '' TERM; echo $$ > pid; while :; do sleep 1000; done");
  supervisor.Spawn({}, read_end.get());
  supervisor.Connect();
  supervisor.Start();
  const pid_t rank = AwaitPid(supervisor.Path("pid"));
  // The lease is an hour, and this daemon still listens: only the lifeline can end it.
  write_end.reset();
  EXPECT_TRUE(AwaitGone(rank));
  EXPECT_EQ(supervisor.AwaitExit(), 0);
}

TEST(SupervisorTest, ASilentDaemonsLeaseEndsEverything) {
  SupervisorHarness supervisor;
  *supervisor.launch().mutable_lease() = ToProtoDuration(milliseconds(400));
  supervisor.AddRank("trap '' TERM; echo $$ > pid; while :; do sleep 1000; done");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  ASSERT_TRUE(supervisor.Await(Response::kStarted));
  // Connected, and silent.
  const auto exit = supervisor.AwaitExits(1)[0];
  EXPECT_EQ(exit.signal(), SIGKILL);
  EXPECT_TRUE(exit.teardown());
  EXPECT_EQ(supervisor.AwaitExit(), 0);
  v1::SupervisorState last;
  const auto file = os::ReadFile(supervisor.Path("final"));
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(last.ParseFromString(*file));
  EXPECT_TRUE(last.ended());
  ASSERT_EQ(last.exits_size(), 1);
  EXPECT_EQ(last.exits(0).signal(), SIGKILL);
}

TEST(SupervisorTest, EndsWithItsDaemonWhereToldTo) {
  SupervisorHarness supervisor;
  supervisor.AddRank("echo $$ > pid; sleep 1000");
  supervisor.Spawn({"--end-with-daemon"});
  supervisor.Connect();
  supervisor.Start();
  const pid_t rank = AwaitPid(supervisor.Path("pid"));
  supervisor.Disconnect();
  EXPECT_TRUE(AwaitGone(rank));
  EXPECT_EQ(supervisor.AwaitExit(), 0);
}

TEST(SupervisorTest, ADaemonThatComesBackSeesEverything) {
  SupervisorHarness supervisor;
  supervisor.AddRank("exit 5");
  supervisor.AddRank("echo $$ > pid; sleep 1000");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  supervisor.AwaitExits(1);
  const pid_t rank = AwaitPid(supervisor.Path("pid"));
  supervisor.Disconnect();
  const v1::SupervisorState state = supervisor.Connect();
  EXPECT_TRUE(state.started());
  EXPECT_FALSE(state.ended());
  ASSERT_EQ(state.processes_size(), 2);
  EXPECT_EQ(state.processes(1).rank(), 1);
  EXPECT_EQ(state.processes(1).pid(), rank);
  ASSERT_EQ(state.exits_size(), 1);
  EXPECT_EQ(state.exits(0).exit_code(), 5);
  supervisor.Stop(milliseconds(0));
  EXPECT_TRUE(supervisor.Await(Response::kEnded));
}

TEST(SupervisorTest, RanksDieWithTheirSupervisor) {
  SupervisorHarness supervisor;
  supervisor.AddRank("echo $$ > pid; exec sleep 1000");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  const pid_t rank = AwaitPid(supervisor.Path("pid"));
  ::kill(supervisor.pid(), SIGKILL);
  EXPECT_TRUE(AwaitGone(rank));
}

// By default most of these would end it, some would stop it.
TEST(SupervisorTest, ASignalThatIsMeantForARankIsIgnored) {
  SupervisorHarness supervisor;
  supervisor.AddRank("echo $$ > pid; exec sleep 1000");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  const pid_t rank = AwaitPid(supervisor.Path("pid"));
  for (const int signal : {SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE, SIGALRM, SIGVTALRM, SIGPROF, SIGIO,
                           SIGPWR, SIGXCPU, SIGXFSZ, SIGSTKFLT, SIGTSTP, SIGTTIN, SIGRTMIN}) {
    ASSERT_EQ(::kill(supervisor.pid(), signal), 0);
  }
  const v1::SupervisorState state = supervisor.Connect();
  EXPECT_FALSE(state.ended());
  ASSERT_EQ(state.processes_size(), 1);
  EXPECT_EQ(state.processes(0).pid(), rank);
  EXPECT_EQ(state.exits_size(), 0);
  EXPECT_EQ(::kill(rank, 0), 0);
}

TEST(SupervisorTest, ASignalThatStopsTheRanksIsToldAsTheCause) {
  for (const auto& [signal, name] :
       {std::pair(SIGTERM, "SIGTERM"), {SIGINT, "SIGINT"}, {SIGQUIT, "SIGQUIT"}}) {
    SupervisorHarness supervisor;
    supervisor.AddRank("exit 0");
    supervisor.AddRank("echo $$ > pid; exec sleep 1000");
    supervisor.Spawn();
    supervisor.Connect();
    supervisor.Start();
    EXPECT_EQ(supervisor.AwaitExits(1)[0].error_message(), "");
    const pid_t rank = AwaitPid(supervisor.Path("pid"));
    ASSERT_EQ(::kill(supervisor.pid(), signal), 0);
    const auto exit = supervisor.Await(Response::kRankExit);
    ASSERT_TRUE(exit.has_value()) << name;
    EXPECT_EQ(exit->rank_exit().signal(), SIGTERM) << "with the grace that the job has";
    EXPECT_TRUE(exit->rank_exit().teardown());
    EXPECT_EQ(exit->rank_exit().error_message(),
              std::string("the ranks' supervisor was sent ") + name);
    EXPECT_TRUE(AwaitGone(rank));
    EXPECT_TRUE(supervisor.Await(Response::kEnded));
  }
}

TEST(SupervisorTest, ForwardsReportsAndIgnoresWhatIsNone) {
  SupervisorHarness supervisor;
  supervisor.AddRank("while [ ! -e done ]; do sleep 0.01; done");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  ASSERT_TRUE(supervisor.Await(Response::kStarted));
  const os::UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, supervisor.Path("r0.sock").c_str());
  const auto report = [&](const std::string& text) {
    ASSERT_EQ(::sendto(socket.get(), text.data(), text.size(), 0,
                       reinterpret_cast<sockaddr*>(&address), sizeof(address)),
              static_cast<ssize_t>(text.size()));
  };
  report("no JSON");
  report(R"({"step": 12, "loss": 0.5})");
  const auto progress = supervisor.Await(Response::kProgress);
  ASSERT_TRUE(progress);
  EXPECT_EQ(progress->progress().progress(0).progress().step(), 12);
  EXPECT_EQ(progress->progress().progress(0).progress().loss(), 0.5);
  // What is said just before the end arrives before the end.
  report(R"({"step": 13, "note": "done"})");
  ASSERT_TRUE(os::WriteFileAtomically(supervisor.Path("done"), "").ok());
  const auto last = supervisor.Await(Response::kProgress);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->progress().progress(0).progress().step(), 13);
  EXPECT_EQ(last->progress().progress(0).progress().note(), "done");
  EXPECT_FALSE(last->progress().progress(0).progress().has_loss()) << "that was of step 12";
  supervisor.AwaitExits(1);
}

TEST(SupervisorTest, AStepHasTheTimeAtWhichItWasReported) {
  SupervisorHarness supervisor;
  supervisor.AddRank("while [ ! -e done ]; do sleep 0.01; done");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  ASSERT_TRUE(supervisor.Await(Response::kStarted));
  const os::UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, supervisor.Path("r0.sock").c_str());
  // When each is sent, at the earliest and at the latest.
  std::vector<std::pair<int64_t, int64_t>> reported;
  // The supervisor comes to all of them late.
  ASSERT_EQ(::kill(supervisor.pid(), SIGSTOP), 0);
  for (int step = 1; step <= 3; ++step) {
    const std::string text = "{\"step\": " + std::to_string(step) + "}";
    const int64_t before = os::BootTimeNow().count();
    ASSERT_EQ(::sendto(socket.get(), text.data(), text.size(), 0,
                       reinterpret_cast<sockaddr*>(&address), sizeof(address)),
              static_cast<ssize_t>(text.size()));
    reported.emplace_back(before, os::BootTimeNow().count());
    std::this_thread::sleep_for(milliseconds(100));
  }
  ASSERT_EQ(::kill(supervisor.pid(), SIGCONT), 0);
  const auto progress = supervisor.Await(Response::kProgress);
  ASSERT_TRUE(progress);
  const v1::ProcessProgress& steps = progress->progress().progress(0);
  ASSERT_EQ(steps.steps_size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_GE(steps.steps(i).at_nanos(), reported[i].first - 1'000'000);
    EXPECT_LT(steps.steps(i).at_nanos(), reported[i].second + 50'000'000);
  }
  ASSERT_TRUE(os::WriteFileAtomically(supervisor.Path("done"), "").ok());
  supervisor.AwaitExits(1);
}

TEST(SupervisorTest, ARanksStderrSaysThatItsEventFilesCannotBeWritten) {
  SupervisorHarness supervisor;
  supervisor.AddRank("while [ ! -e done ]; do sleep 0.01; done")
      .set_event_directory("/proc/nope/a");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  ASSERT_TRUE(supervisor.Await(Response::kStarted));
  const os::UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, supervisor.Path("r0.sock").c_str());
  const std::string text = R"({"step": 1, "loss": 0.5})";
  ASSERT_EQ(::sendto(socket.get(), text.data(), text.size(), 0,
                     reinterpret_cast<sockaddr*>(&address), sizeof(address)),
            static_cast<ssize_t>(text.size()));
  const std::string log = supervisor.Path("0.stderr.log");
  EXPECT_TRUE(testing::Eventually([&] { return os::ReadFile(log).value_or("").size() > 0; }));
  ASSERT_TRUE(os::WriteFileAtomically(supervisor.Path("done"), "").ok());
  supervisor.AwaitExits(1);
  EXPECT_THAT(os::ReadFile(log).value_or(""),
              HasSubstr("meshrun: rank 0 goes on without event files: /proc/nope"));
}

TEST(SupervisorTest, AProcessOfALaterGenerationStartsBesideThoseThatLiveOn) {
  SupervisorHarness supervisor;
  supervisor.AddRank("echo $$ > pid; exec sleep 1000");
  // What it leaves has left its session and its process group.
  supervisor.AddRank("setsid -f sh -c 'echo $$ > left; exec sleep 1000'; exit 7");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  EXPECT_EQ(supervisor.AwaitExits(1)[0].exit_code(), 7);
  const pid_t left = AwaitPid(supervisor.Path("left"));
  const pid_t kept = AwaitPid(supervisor.Path("pid"));
  supervisor.StartLater(
      supervisor.LaterRank(2, 1, "kill -0 " + std::to_string(left) + " && exit 8; exit 9"));
  const auto exit = supervisor.AwaitExits(1)[0];
  EXPECT_EQ(exit.exit_code(), 9);
  EXPECT_EQ(exit.process_generation(), 2u);
  EXPECT_EQ(exit.process_rank(), 1);
  EXPECT_TRUE(AwaitGone(left));
  EXPECT_EQ(::kill(kept, 0), 0);
  // Known: not started twice.
  supervisor.StartLater(supervisor.LaterRank(2, 1, "exit 10"));
  const auto started = supervisor.Await(Response::kStarted);
  ASSERT_TRUE(started);
  EXPECT_EQ(started->started().processes_size(), 0);
  supervisor.Stop(milliseconds(0));
  EXPECT_EQ(supervisor.AwaitExits(1)[0].signal(), SIGKILL);
}

TEST(SupervisorTest, AProcessIsStoppedAlone) {
  SupervisorHarness supervisor;
  supervisor.AddRank("echo $$ > pid; exec sleep 1000");
  supervisor.AddRank("trap '' TERM; echo $$ > stubborn; while :; do sleep 1000; done");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  const pid_t kept = AwaitPid(supervisor.Path("pid"));
  AwaitPid(supervisor.Path("stubborn"));
  supervisor.StopAlone(1, 1, milliseconds(50));
  // It lengthens nothing.
  supervisor.StopAlone(1, 1, std::chrono::hours(1));
  const auto exit = supervisor.AwaitExits(1)[0];
  EXPECT_EQ(exit.rank(), 1);
  EXPECT_EQ(exit.signal(), SIGKILL);
  EXPECT_TRUE(exit.teardown());
  EXPECT_EQ(::kill(kept, 0), 0);
}

TEST(SupervisorTest, TheFenceTimeEndsRanksWhateverTheirGrace) {
  SupervisorHarness supervisor;
  *supervisor.launch().mutable_kill_grace() = ToProtoDuration(std::chrono::hours(1));
  supervisor.AddRank("trap '' TERM; echo $$ > pid; while :; do sleep 1000; done");
  supervisor.Spawn();
  supervisor.Connect();
  supervisor.Start();
  AwaitPid(supervisor.Path("pid"));
  supervisor.PingWithFence(std::chrono::hours(1));
  supervisor.Stop(std::chrono::hours(1));
  supervisor.PingWithFence(milliseconds(100));
  const auto exit = supervisor.AwaitExits(1)[0];
  EXPECT_EQ(exit.signal(), SIGKILL);
  EXPECT_TRUE(exit.teardown());
}

}  // namespace
}  // namespace meshrun::worker
