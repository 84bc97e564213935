// The meshrun command as a person uses it: real daemons, real ranks, standard streams and exit
// codes.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/support/sync_stream.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "client/daemon_process.h"
#include "core/os/files.h"
#include "core/os/host_name.h"
#include "core/os/process.h"
#include "core/rpc/channel.h"
#include "tests/client/command_fixture.h"
#include "tests/worker/support/processes.h"

namespace meshrun::client {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(CommandTest, RunShowsEachRanksLinesAndSucceeds) {
  const Result result = Run(
      {"run", "--nproc_per_node=2", "sh", "-c", "echo rank $RANK of $WORLD_SIZE; echo aside >&2"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("0: rank 0 of 2\n"));
  EXPECT_THAT(result.out, HasSubstr("1: rank 1 of 2\n"));
  EXPECT_THAT(result.err, HasSubstr("1: aside\n"));
  EXPECT_THAT(result.err, HasSubstr("succeeded"));
}

TEST_F(CommandTest, ASingleRankIsShownAsItWrites) {
  const Result result =
      Run({"run", "--env", "GREETING=hello", "--", "sh", "-c", "printf \"$GREETING\\nno end\""});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "hello\nno end");
  // Every byte, and not a byte more.
  const Result binary = Run({"run", "--", "python3", "-c",
                             "import os; os.write(1, bytes(range(256)) * 1000 + b'1%\\r2%')"});
  EXPECT_EQ(binary.code, 0) << binary.err;
  std::string all;
  for (int i = 0; i < 256 * 1000; ++i) all += static_cast<char>(i % 256);
  EXPECT_TRUE(binary.out == all + "1%\r2%") << binary.out.size();
}

TEST_F(CommandTest, LongLinesOfSeveralRanksStayWhole) {
  const Result result = Run({"run", "--nproc", "2", "--", "python3", "-c", "print('x' * 300000)"});
  EXPECT_EQ(result.code, 0) << result.err;
  const std::string line = ": " + std::string(300000, 'x') + "\n";
  EXPECT_TRUE(result.out == "0" + line + "1" + line || result.out == "1" + line + "0" + line)
      << result.out.size();
}

TEST_F(CommandTest, OutputThatCannotBeWrittenIsSaidOnceAndTheJobGoesOn) {
  const std::string done = directory_ + "/done";
  const auto run = [&](const std::string& stream, const std::string& end) {
    std::filesystem::remove(done);
    return Wait(StartProgram(
        {"/bin/sh", "-c",
         Meshrun() + " run -- sh -c 'for i in 1 2 3; do echo $i; echo $i >&2; done; touch " + done +
             "; exit " + end + "' " + stream + " /dev/full"}));
  };
  const Result full = run(">", "0");
  EXPECT_EQ(full.code, 74);
  EXPECT_TRUE(std::filesystem::exists(done));
  EXPECT_THAT(full.err, HasSubstr("standard output cannot be written: No space left on device"));
  EXPECT_EQ(full.err.find("cannot be written"), full.err.rfind("cannot be written")) << full.err;
  EXPECT_THAT(full.err, HasSubstr("6 B of output could not be written"));
  EXPECT_THAT(full.err, HasSubstr("succeeded"));
  // A failure of the job is told first.
  EXPECT_EQ(run(">", "3").code, 1);
  // Every command.
  for (const char* command : {"--help", "run --help", "completion bash"}) {
    const Result result =
        Wait(StartProgram({"/bin/sh", "-c", Meshrun() + " " + command + " > /dev/full"}));
    EXPECT_EQ(result.code, 74) << command << result.err;
    EXPECT_THAT(result.err, HasSubstr("No space left on device"));
  }
  const Result silent = run("2>", "0");
  EXPECT_EQ(silent.code, 74);
  EXPECT_EQ(silent.out, "1\n2\n3\n");
}

TEST_F(CommandTest, AnIdThatCannotBePrintedIsSaid) {
  DevUp(1);
  const auto call = [this](const std::string& words) {
    return Wait(StartProgram({"/bin/bash", "-c", Meshrun() + " " + words}));
  };
  for (const std::string flags : {"--name lost", "--hold --name lost", "-o json --name lost"}) {
    const Result submitted = call("submit " + flags + " -- true > /dev/full");
    EXPECT_EQ(submitted.code, 74) << submitted.err;
    EXPECT_THAT(submitted.err, HasSubstr("submitted lost-"));
    EXPECT_THAT(submitted.err, HasSubstr("standard output cannot be written: No space left"));
  }
  // A pipe that nobody reads.
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ::close(ends[0]);
  os::SpawnOptions options;
  options.argv = {Meshrun(), "submit", "--name", "unread", "--", "true"};
  const std::string said = directory_ + "/said";
  const os::UniqueFd err(::open(said.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  options.stdout_fd = ends[1];
  options.stderr_fd = err.get();
  const auto unread = os::Spawn(options);
  ASSERT_TRUE(unread.ok());
  ::close(ends[1]);
  int status = -1;
  ASSERT_EQ(::waitpid(*unread, &status, 0), *unread);
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGPIPE);
  EXPECT_THAT(*os::ReadFile(said), HasSubstr("submitted unread-"));
  EXPECT_EQ(call("logs -f unread").code, 0);
  for (const std::string words : {"wait unread", "wait -o json unread", "ps -a", "ps -a --limit 1",
                                  "nodes", "describe unread", "events"}) {
    const Result result = call(words + " > /dev/full");
    EXPECT_EQ(result.code, 74) << words << ": " << result.err;
    EXPECT_THAT(result.err, HasSubstr("No space left on device")) << words;
  }
  // What became of the job is told first.
  EXPECT_EQ(call("submit --name bad --follow -- false").code, 1);
  EXPECT_EQ(call("wait bad > /dev/full").code, 1);
}

TEST_F(CommandTest, AClosedStandardStreamIsNoOtherDescriptor) {
  DevUp(1);
  const auto call = [this](const std::string& words) {
    return Wait(StartProgram({"/bin/sh", "-c", Meshrun() + " " + words}));
  };
  for (const std::string words : {"run -- echo lost", "run --nproc 2 -- echo lost", "nodes",
                                  "submit --name hidden -- true", "ps -a", "--help"}) {
    const Result result = call(words + " >&-");
    EXPECT_EQ(result.code, 74) << words << ": " << result.err;
    EXPECT_THAT(result.err, HasSubstr("standard output cannot be written: Bad file descriptor"));
  }
  const Result input = call("run --stdin 0 -- cat 0<&-");
  EXPECT_EQ(input.code, 0) << input.err;
  EXPECT_EQ(input.out, "");
  EXPECT_EQ(call("run --nproc 2 --stdin all -- cat 0<&-").code, 0);
  const Result dark = call("run -- echo shown 0<&- 2>&-");
  EXPECT_EQ(dark.out, "shown\n");
}

TEST_F(CommandTest, ADaemonsClosedStandardStreamsAreTheNullDevice) {
  const auto streams = [&](const std::string& command) {
    // The one before may still be open.
    const std::string ready = Fifo();
    const pid_t pid = StartProgram(
        {"/bin/sh", "-c", "exec " + command + " --ready-fd 5 5>" + ready + " 0<&- >&- 2>&-"});
    std::ifstream in(ready);
    std::string line;
    std::getline(in, line);
    EXPECT_THAT(line, HasSubstr("{"));
    std::vector<std::string> targets;
    for (const int fd : {0, 1, 2}) {
      std::error_code error;
      targets.push_back(
          std::filesystem::read_symlink(fmt::format("/proc/{}/fd/{}", pid, fd), error).string());
    }
    return std::pair(pid, targets);
  };
  const std::string address = "unix:" + sockets_ + "/c";
  const auto program = [](const std::string& path) {
    return std::filesystem::absolute(path).string();
  };
  const auto coordinator =
      streams(program("coordinator/meshrun-coordinator") + " --ephemeral --listen " + address);
  const auto worker = streams(program("worker/meshrun-worker") + " --coordinator " + address +
                              " --state-dir " + directory_ + "/w");
  for (const auto& [pid, targets] : {worker, coordinator}) {
    EXPECT_THAT(targets, ::testing::Each("/dev/null"));
    ::kill(pid, SIGTERM);
    EXPECT_EQ(Wait(pid).code, 0);
  }
}

TEST_F(CommandTest, WrongCallsOfADaemonNameTheFlagInOneSentence) {
  const std::string coordinator = std::filesystem::absolute("coordinator/meshrun-coordinator");
  const std::string worker = std::filesystem::absolute("worker/meshrun-worker");
  const struct {
    std::vector<std::string> call;
    std::string words;
  } cases[] = {
      {{coordinator, "--ephemeral", "--lease", "soon"}, "--lease: 'soon' is not a duration"},
      {{coordinator, "--ephemeral", "--heartbeat", "0"}, "--heartbeat 0: write a time above 0"},
      {{coordinator, "--ephemeral", "--keep-jobs", "0"}, "--keep-jobs: Value 0 not in range"},
      {{coordinator, "--ephemeral", "--log-level", "loud"}, "--log-level: log level 'loud'"},
      {{coordinator, "--ephemeral", "--no\x1b[31m"}, "--no\\x1b[31m: --help shows how"},
      {{worker, "--cores", "0"}, "--cores: Value 0 not in range"},
      {{worker, "--keep-logs-count", "many"}, "--keep-logs-count: Value many not in range"},
      {{worker, "--orphan-timeout", "0"}, "--orphan-timeout 0: write a time above 0"},
      {{worker, "--orphan-timeout", "x\ny"}, "--orphan-timeout: 'x\\x0ay' is not a duration"},
      {{worker, "--file-timeout", "0s"}, "--file-timeout 0s: write a time above 0"},
      {{worker, "--stop-timeout", "soon"}, "--stop-timeout: 'soon' is not a duration"},
      {{worker, "--keep-logs-for", "1y"}, "--keep-logs-for: '1y' is not a duration"},
      {{worker, "--keep-logs", "much"}, "--keep-logs: 'much' is not an amount of memory"},
      {{worker, "--log-limit", "-1"}, "--log-limit: '-1' is not an amount of memory"},
      {{worker, "--memory", "4X"}, "--memory: '4X' is not an amount of memory"},
      {{worker, "--port-range", "1-2"}, "--port-range: '1-2' is not a range of ports"},
      {{worker, "--log-level", "loud"}, "--log-level: log level 'loud'"},
      {{worker, "--no\x1b[31m"}, "--no\\x1b[31m: --help shows how"},
  };
  for (const auto& c : cases) {
    const Result result = Wait(StartProgram(c.call));
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err,
                ::testing::StartsWith(std::filesystem::path(c.call[0]).filename().string() + ": "));
    EXPECT_THAT(result.err, HasSubstr(c.words));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST_F(CommandTest, FilesOfEachRankLieAsTorchrunsDo) {
  const std::string logs = directory_ + "/logs";
  const std::string script =
      "printf 'out %d\\r\\n' $RANK; printf 'err no end' >&2; exit $TORCHELASTIC_RESTART_COUNT";
  Result result = Run({"run", "--nproc", "2", "--log-dir", logs, "-t", "0:1", "-r", "1:3", "--",
                       "sh", "-c", script});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "0: out 0\r\n");
  EXPECT_THAT(result.err, HasSubstr("0: err no end\n"));
  EXPECT_THAT(result.err, Not(HasSubstr("1: err")));
  std::vector<std::filesystem::path> jobs;
  for (const auto& entry : std::filesystem::directory_iterator(logs)) jobs.push_back(entry.path());
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_THAT(result.err, HasSubstr("/logs/" + jobs[0].filename().string()));
  const auto read = [&](const std::string& name) {
    return os::ReadFile((jobs[0] / name).string()).value_or("absent");
  };
  EXPECT_EQ(read("attempt_0/0/stdout.log"), "out 0\r\n");
  EXPECT_EQ(read("attempt_0/0/stderr.log"), "absent");
  EXPECT_EQ(read("attempt_0/1/stdout.log"), "out 1\r\n");
  EXPECT_EQ(read("attempt_0/1/stderr.log"), "err no end");
  // Without choice all goes to files, and is shown.
  std::filesystem::remove_all(logs);
  result = Run({"run", "--log-dir", logs, "--max-restarts", "1", "--", "sh", "-c",
                "echo try $TORCHELASTIC_RESTART_COUNT; exit $((1 - $TORCHELASTIC_RESTART_COUNT))"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "try 0\ntry 1\n");
  jobs.clear();
  for (const auto& entry : std::filesystem::directory_iterator(logs)) jobs.push_back(entry.path());
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(read("attempt_0/0/stdout.log"), "try 0\n");
  EXPECT_EQ(read("attempt_1/0/stdout.log"), "try 1\n");
  EXPECT_EQ(read("attempt_1/0/stderr.log"), "");
}

// The log of a rank names the file.
TEST_F(CommandTest, FlightRecordsOutliveTheRunThatWroteThem) {
  const std::string script =
      "file=\"$(mktemp \"${MESHRUN_FLIGHT_RECORD_DIR-$(dirname \"$TORCHELASTIC_ERROR_FILE\")}\"/"
      "meshrun-flight-record-test.XXXXXX)\"; echo kept > \"$file\"; printf \"$file\"";
  Result result = Run({"run", "--", "sh", "-c", script});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(os::ReadFile(result.out).value_or("absent"), "kept\n") << result.out;
  std::filesystem::remove(result.out);
  // With logs that are kept it is beside them.
  const std::string logs = directory_ + "/logs";
  result = Run({"run", "--log-dir", logs, "--", "sh", "-c", script});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("/logs/"));
  EXPECT_EQ(os::ReadFile(result.out).value_or("absent"), "kept\n") << result.out;
  // Where the user says.
  result =
      Run({"run", "--env", "MESHRUN_FLIGHT_RECORD_DIR=" + directory_, "--", "sh", "-c", script});
  EXPECT_THAT(result.out, ::testing::StartsWith(directory_ + "/meshrun-flight-record-test."));
}

TEST_F(CommandTest, OnlyChosenRanksAreShown) {
  const Result one =
      Run({"run", "--nproc", "3", "--local-ranks-filter", "1", "--", "sh", "-c", "echo $RANK"});
  EXPECT_EQ(one.out, "1\n");
  const Result two =
      Run({"run", "--nproc", "3", "--local_ranks_filter=0,2", "--", "sh", "-c", "echo $RANK"});
  EXPECT_THAT(two.out, ::testing::AnyOf("0: 0\n2: 2\n", "2: 2\n0: 0\n"));
}

TEST_F(CommandTest, StandardInputReachesTheChosenRank) {
  const std::string command = "echo '1 2' | " + Meshrun() + " run --nproc 2 ";
  const std::string rank = " -- sh -c 'read a b; echo \"$RANK:$a:$b\"'";
  const auto out = [&](const std::string& flags) {
    const Result result = Wait(StartProgram({"/bin/sh", "-c", command + flags + rank}));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  EXPECT_THAT(out(""), HasSubstr("0: 0:1:2\n"));
  const std::string other = out("--stdin 1");
  EXPECT_THAT(other, HasSubstr("0: 0::\n"));
  EXPECT_THAT(other, HasSubstr("1: 1:1:2\n"));
  EXPECT_THAT(out("--stdin none"), HasSubstr("0: 0::\n"));
  const std::string all = out("--stdin all");
  EXPECT_THAT(all, HasSubstr("0: 0:1:2\n"));
  EXPECT_THAT(all, HasSubstr("1: 1:1:2\n"));
  // To its end, however long it is.
  const Result whole = Wait(
      StartProgram({"/bin/sh", "-c",
                    "seq 100000 | " + Meshrun() + " run --nproc 2 --stdin all -- sh -c 'wc -l'"}));
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.out, HasSubstr("0: 100000\n"));
  EXPECT_THAT(whole.out, HasSubstr("1: 100000\n"));
}

TEST_F(CommandTest, AFailureIsReportedWithItsRankAndLines) {
  const Result result =
      Run({"run", "--nproc", "2", "--", "sh", "-c",
           "if [ $RANK = 1 ]; then echo about to fail >&2; exit 3; fi; sleep 60"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("rank 1"));
  EXPECT_THAT(result.err, HasSubstr("exit code 3"));
  EXPECT_THAT(result.err, HasSubstr("| about to fail"));
  EXPECT_THAT(result.err, HasSubstr("1 other rank ended as a consequence"));
}

TEST_F(CommandTest, EachRankKnowsItsMesh) {
  const Result result = Run({"run", "--nproc", "4", "--mesh", "dp=2,spatial=2", "--", "sh", "-c",
                             "echo $LOCAL_RANK of $WORLD_SIZE in $MESHRUN_MESH"});
  EXPECT_EQ(result.code, 0) << result.err;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(result.out, HasSubstr(fmt::format("{}: {} of 4 in dp=2,spatial=2\n", rank, rank)));
  }
  // -1 takes what is left.
  EXPECT_THAT(Run({"run", "--nproc", "4", "--mesh", "dp=-1,spatial=2", "--", "sh", "-c",
                   "test $MESHRUN_MESH = dp=2,spatial=2"})
                  .err,
              HasSubstr("succeeded"));
}

TEST_F(CommandTest, ARanks93ReachesTheShell) {
  EXPECT_EQ(Run({"run", "--", "sh", "-c", "exit 93"}).code, 93);
}

// Two calls on one host stand for two hosts.
TEST_F(CommandTest, SeveralRunsFormOneJobByTorchrunsFlags) {
  const std::string secret = directory_ + "/secret";
  const int port = FreePort();
  const auto words = [&](int node, std::vector<std::string> command) {
    std::vector<std::string> all = {Meshrun(),
                                    "run",
                                    "--nnodes=2",
                                    fmt::format("--node_rank={}", node),
                                    "--nproc_per_node=2",
                                    "--master_addr=127.0.0.1",
                                    fmt::format("--master_port={}", port),
                                    "--rdzv-conf",
                                    "join_timeout=30,secret_file=" + secret};
    all.insert(all.end(), command.begin(), command.end());
    return all;
  };
  const std::vector<std::string> command = {
      "sh", "-c", "echo $GROUP_RANK $LOCAL_RANK $RANK of $WORLD_SIZE [$MESHRUN_RDZV_SECRET]"};
  os::SpawnOptions options;
  const auto with_tee = [](std::vector<std::string> call, const std::string& logs) {
    call.insert(call.begin() + 2, {"--log-dir", logs, "--tee", "0:1", "-r", "1:2"});
    return call;
  };
  options.argv = with_tee(words(0, command), directory_ + "/logs0");
  const os::UniqueFd out(
      ::open((directory_ + "/node0").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  options.stdout_fd = options.stderr_fd = out.get();
  const auto node0 = os::Spawn(options);
  ASSERT_TRUE(node0.ok());
  // It waits for the secret's file, and then for node 0.
  const Result other = Wait(StartProgram(words(1, {"true"})));
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("and this node 'true': call both alike"));
  // Local ranks: 0 of this node is 2 of the world.
  const std::string logs = directory_ + "/logs";
  const Result node1 = Wait(StartProgram(with_tee(words(1, command), logs)));
  EXPECT_EQ(node1.code, 0) << node1.err;
  std::vector<std::string> kept;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(logs)) {
    if (entry.is_regular_file()) kept.push_back(entry.path().string());
  }
  EXPECT_THAT(kept,
              ::testing::UnorderedElementsAre(::testing::EndsWith("/attempt_0/2/stdout.log"),
                                              ::testing::EndsWith("/attempt_0/3/stderr.log")));
  for (const std::string& path : kept) {
    if (path.ends_with("stdout.log")) {
      EXPECT_EQ(*os::ReadFile(path), "1 0 2 of 4 []\n");
    }
  }
  // Each shows its own ranks.
  EXPECT_THAT(node1.out, HasSubstr("2: 1 0 2 of 4 []\n"));
  EXPECT_THAT(node1.out, HasSubstr("3: 1 1 3 of 4 []\n"));
  EXPECT_THAT(node1.out, Not(HasSubstr("0 of 4 []")));
  EXPECT_THAT(node1.err, HasSubstr("succeeded"));
  int status = -1;
  ASSERT_EQ(::waitpid(*node0, &status, 0), *node0);
  EXPECT_EQ(status, 0);
  const std::string said = *os::ReadFile(directory_ + "/node0");
  EXPECT_THAT(said, HasSubstr("0: 0 0 0 of 4 []\n"));
  EXPECT_THAT(said, Not(HasSubstr("3 of 4 []")));
  EXPECT_THAT(said, HasSubstr("the others need the secret in " + secret));
}

// The variables that srun sets stand for the flags; two calls on one host stand for two hosts.
TEST_F(CommandTest, AStepOfSlurmNeedsNoFlagsOfTheRendezvous) {
  const auto spawn = [&](const std::string& task, const std::string& out) {
    os::SpawnOptions options;
    options.argv = {Meshrun(),
                    "run",
                    "--nnodes=2",
                    "--nproc-per-node=2",
                    "--working-dir",
                    directory_,
                    "sh",
                    "-c",
                    "echo $GROUP_RANK $LOCAL_RANK $RANK of $WORLD_SIZE"};
    options.env = {{"SLURM_JOB_ID", fmt::format("{}", ::getpid())},
                   {"SLURM_STEP_ID", "0"},
                   {"SLURM_PROCID", task},
                   {"SLURM_STEP_NUM_NODES", "2"},
                   {"SLURM_STEP_NUM_TASKS", "2"},
                   {"SLURM_STEP_NODELIST", "localhost,other"}};
    const os::UniqueFd file(
        ::open((directory_ + out).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    options.stdout_fd = options.stderr_fd = file.get();
    return os::Spawn(options);
  };
  const auto node1 = spawn("1", "/node1");
  const auto node0 = spawn("0", "/node0");
  ASSERT_TRUE(node0.ok() && node1.ok());
  for (const pid_t pid : {*node0, *node1}) {
    int status = -1;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0) << *os::ReadFile(directory_ + "/node0")
                         << *os::ReadFile(directory_ + "/node1");
  }
  EXPECT_THAT(*os::ReadFile(directory_ + "/node0"), HasSubstr("1: 0 1 1 of 4\n"));
  EXPECT_THAT(*os::ReadFile(directory_ + "/node1"), HasSubstr("2: 1 0 2 of 4\n"));
  // Node 0 removes the secret at its end.
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".meshrun")));
  }
}

std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& thread :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", parent))) {
    std::ifstream file(thread.path() / "children");
    for (pid_t child = 0; file >> child;) children.push_back(child);
  }
  return children;
}

// A batch system signals every process of its job: the daemons outlast their run's ranks.
TEST_F(CommandTest, DaemonsOfARunLeaveSignalsToIt) {
  const std::string fifo = Fifo();
  const std::string gate = directory_ + "/gate";
  const pid_t run =
      Start({"run", "--", "sh", "-c",
             "echo $$ > " + fifo + "; until [ -e " + gate + " ]; do sleep 0.05; done"});
  ASSERT_GT(ReadPid(fifo), 0);
  const std::vector<pid_t> daemons = ChildrenOf(run);
  EXPECT_EQ(daemons.size(), 2u);
  for (const pid_t daemon : daemons) {
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) EXPECT_EQ(::kill(daemon, signal), 0);
  }
  std::ofstream(gate).put('\n');
  const Result result = Wait(run);
  EXPECT_EQ(result.code, 0) << result.err;
}

// A rendezvous peer ends without a word: the other says which one, and what is known of it.
TEST_F(CommandTest, AKilledRunIsNamedByTheOtherNode) {
  const std::string host = os::HostName();
  for (const int killed : {1, 0}) {
    SCOPED_TRACE(killed);
    const std::string secret = fmt::format("{}/secret{}", directory_, killed);
    const int port = FreePort();
    const std::string fifo = Fifo();
    const auto words = [&](int node) {
      return std::vector<std::string>{Meshrun(),
                                      "run",
                                      "--nnodes=2",
                                      fmt::format("--node_rank={}", node),
                                      "--master_addr=127.0.0.1",
                                      fmt::format("--master_port={}", port),
                                      "--rdzv-conf",
                                      "join_timeout=30,secret_file=" + secret,
                                      "sh",
                                      "-c",
                                      "[ $RANK = 0 ] || echo $$ > " + fifo + "; exec sleep 600"};
    };
    os::SpawnOptions options;
    options.argv = words(killed);
    const os::UniqueFd out(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    options.stdout_fd = options.stderr_fd = out.get();
    const auto victim = os::Spawn(options);
    ASSERT_TRUE(victim.ok());
    const pid_t other = StartProgram(words(1 - killed));
    ASSERT_GT(ReadPid(fifo), 0);
    ::kill(*victim, SIGKILL);
    const Result result = Wait(other);
    ASSERT_EQ(::waitpid(*victim, nullptr, 0), *victim);
    EXPECT_EQ(result.code, 1);
    const std::string ended = fmt::format(
        "the worker on node{0}-{1} stopped its ranks: the 'meshrun run' of node rank {0} "
        "on {1} has ended",
        killed, host);
    // With node 0 the coordinator ends: whether the job's report comes first is a race of the two.
    const std::string gone = fmt::format(
        "node 0 at 127.0.0.1:{} has gone: its 'meshrun run' has ended; this node's ranks are "
        "stopped",
        port);
    if (killed == 0) {
      EXPECT_THAT(result.err, ::testing::AnyOf(HasSubstr(gone), HasSubstr(ended)));
    } else {
      EXPECT_THAT(result.err, HasSubstr(ended));
    }
  }
}

TEST_F(CommandTest, SeveralRunsMeetByCertificatesAndTheC10dSpelling) {
  const std::string authority = directory_ + "/ca";
  ASSERT_EQ(Run({"ca", "init", "--ca", authority}).code, 0);
  const auto issue = [&](const std::string& out, std::vector<std::string> flags) {
    std::vector<std::string> call = {"ca",     "issue",  "--ca",   authority, "--out",  out,
                                     "--role", "worker", "--role", "operate", "--node", "*"};
    call.insert(call.end(), flags.begin(), flags.end());
    const Result result = Run(call);
    ASSERT_EQ(result.code, 0) << result.err;
  };
  issue(directory_ + "/c0", {"--role", "coordinator", "--host", "127.0.0.1"});
  issue(directory_ + "/c1", {});
  const int port = FreePort();
  const auto words = [&](const std::string& certificates) {
    return std::vector<std::string>{Meshrun(),
                                    "run",
                                    "--nnodes=2",
                                    "--nproc_per_node=1",
                                    "--rdzv_backend=c10d",
                                    "--rdzv_id=mine",
                                    fmt::format("--rdzv_endpoint=127.0.0.1:{}", port),
                                    "--tls-cert",
                                    certificates + "/tls.crt",
                                    "--tls-key",
                                    certificates + "/tls.key",
                                    "--tls-ca",
                                    certificates + "/ca.crt",
                                    "sh",
                                    "-c",
                                    "echo $RANK of $WORLD_SIZE"};
  };
  os::SpawnOptions options;
  options.argv = words(directory_ + "/c0");
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const os::UniqueFd read_end(ends[0]);
  os::UniqueFd write_end(ends[1]);
  options.stdout_fd = options.stderr_fd = write_end.get();
  const auto node0 = os::Spawn(options);
  ASSERT_TRUE(node0.ok());
  write_end.reset();
  // The second one on a host joins, as torchrun has it: it must come when the first one serves.
  std::string said;
  char buffer[4096];
  const auto read = [&] {
    const ssize_t n = ::read(read_end.get(), buffer, sizeof(buffer));
    if (n > 0) said.append(buffer, static_cast<size_t>(n));
    return n > 0;
  };
  while (said.find("serves at") == std::string::npos && read()) {
  }
  const Result node1 = Wait(StartProgram(words(directory_ + "/c1")));
  EXPECT_EQ(node1.code, 0) << node1.err;
  EXPECT_THAT(node1.out, HasSubstr("1 of 2\n"));
  while (read()) {
  }
  int status = -1;
  ASSERT_EQ(::waitpid(*node0, &status, 0), *node0);
  EXPECT_EQ(status, 0) << said;
  EXPECT_THAT(said, HasSubstr("0 of 2\n"));
  EXPECT_THAT(said, Not(HasSubstr("secret")));
}

TEST_F(CommandTest, WrongCallsSayOneSentenceAndExitWith2) {
  const struct {
    std::vector<std::string> arguments;
    std::string words;
  } cases[] = {
      {{"rnu"}, "did you mean 'run'"},
      {{"run", "--nporc", "2", "true"}, "did you mean '--nproc'"},
      {{"run", "--", "./absent"}, "no such file"},
      {{"run", "--nproc", "4096", "--", "true"}, "4096 slots"},
      {{"run", "--nproc", "4", "--mesh", "dp=3,tp=2", "--", "true"},
       "needs 6 ranks, but the job has 4"},
      {{"run", "--nnodes", "2", "--", "true"}, "meshrun submit"},
      {{"run", "--nnodes", "2", "--node-rank", "1", "--master-addr", "h", "true"},
       "needs the secret that node 0 at h:29500"},
      {{"run"}, "nothing to run"},
      {{"logs"}, "JOB"},
      {{"submit", "-f", "/nonexistent.yaml"}, "/nonexistent.yaml"},
      {{"run", "--job", "no-such-job"}, "no-such-job"},
      {{"run", "--log-dir", "/dev/full/logs", "true"}, "--log-dir /dev/full/logs"},
      {{"run", "--tee", "4", "true"}, "--tee: '4': write 1 for stdout"},
      {{"run", "-r", "0:1,2", "true"}, "--redirects: '0:1,2'"},
      {{"run", "--local-ranks-filter", "1", "true"}, "the ranks are 0 to 0"},
      {{"run", "--stdin", "1", "true"}, "--stdin 1"},
      {{"ps", "--limit", "0"}, "--limit 0: write a whole number from 1 up"},
      {{"run", "--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--rdzv-conf",
        "secretfile=x", "true"},
       "there is no secretfile: did you mean 'secret_file'?"},
      {{"run", "."}, "/. is a directory, not a program"},
      {{"run", "--env", "RANK=7", "true"}, "--env RANK=7: RANK is set by meshrun for each rank"},
      {{"submit", "--export", ",", "true"}, "--export ,: a name is empty"},
      {{"submit", "--export", "PATH,", "true"}, "--export PATH,: a name is empty"},
      {{"run", "--time-limit", "0", "true"}, "--time-limit 0: write a time above 0"},
      {{"run", "--procs-per-node", "5000", "true"},
       "--procs-per-node 5000: 5000 is more than 4096, the most that is taken"},
      {{"run", "--slots", "0", "true"}, "--slots 0: write a whole number from 1 to 1048576"},
      {{"run", "--slots", "many", "true"}, "--slots many: write a whole number from 1"},
      {{"dev", "up", "-n", "0"}, "--workers 0: write a whole number from 1 to 1000"},
      {{"dev", "up", "--slots", "1.5"}, "--slots 1.5: write a whole number"},
      {{"ca", "init", "--days", "0"}, "--days 0: write a whole number from 1 to 36500"},
      {{"logs", "a", "--generation", "-1"}, "--generation -1: write a whole number from 1 up"},
      {{"ps", "--output", "xml"}, "--output xml: write table or json"},
      {{"ps", "--timeout", "0"}, "--timeout 0: write a time above 0"},
      // One line, and no colour of the user's.
      {{"run", "/no\x1b[31mx\n"}, "/no\\x1b[31mx\\x0a: no such file"},
      {{"submit", "--name", "x\ny", "true"}, "'x\\x0ay' is not a job name"},
      {{"r\x7fun"}, "there is no command 'r\\x7fun'"},
  };
  for (const auto& c : cases) {
    const Result result = Run(c.arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(c.words));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

// `meshrun ca renew certificates/*`, where not all of them are of one authority.
TEST_F(CommandTest, RenewingGoesOnAfterOneThatCannotBeRenewed) {
  const auto at = [&](const char* name) { return directory_ + "/certificates/" + name; };
  for (const char* authority : {"ours", "other"}) {
    ASSERT_EQ(Run({"ca", "init", "--ca", directory_ + "/" + authority}).code, 0);
  }
  for (const auto& [name, authority] :
       {std::pair("a", "ours"), std::pair("b", "other"), std::pair("c", "ours")}) {
    const Result issued = Run({"ca", "issue", "--ca", directory_ + "/" + authority, "--role",
                               "read", "--days", "3", "--out", at(name)});
    ASSERT_EQ(issued.code, 0) << issued.err;
  }
  const Result renewed = Run({"ca", "renew", "--ca", directory_ + "/ours", "--days", "30", at("a"),
                              at("b"), at("none"), at("c")});
  EXPECT_EQ(renewed.code, 2);
  EXPECT_THAT(renewed.out, AllOf(HasSubstr(at("a") + ": "), HasSubstr(at("c") + ": ")));
  EXPECT_THAT(renewed.err, AllOf(HasSubstr(at("b") + "/tls.crt"), HasSubstr(at("none")),
                                 HasSubstr("2 of 4 certificates were renewed")));
  // What concerns all of them is said once.
  const Result without = Run({"ca", "renew", "--ca", directory_ + "/none", at("a"), at("c")});
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.err, HasSubstr("0 of 2"));
  EXPECT_EQ(std::count(without.err.begin(), without.err.end(), '\n'), 2) << without.err;
}

TEST_F(CommandTest, ATmpdirThatIsNotThereIsNamed) {
  const Result result =
      Wait(StartProgram({"/bin/sh", "-c", "TMPDIR=/nonexistent exec \"$0\" run true", Meshrun()}));
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.err,
            "meshrun: the local cluster did not start: /nonexistent: No such file or directory: "
            "set TMPDIR to a directory that this user can write\n");
}

TEST_F(CommandTest, WithoutCoordinatorTheExitCodeIs75) {
  Result result = Run({"ps", "--insecure-loopback", "--coordinator", "127.0.0.1:1"});
  EXPECT_EQ(result.code, 75);
  EXPECT_THAT(result.err, HasSubstr("127.0.0.1:1"));
  // Nobody named one.
  ::setenv("XDG_RUNTIME_DIR", sockets_.c_str(), 1);
  result = Run({"ps"});
  EXPECT_EQ(result.code, 75);
  EXPECT_THAT(result.err, HasSubstr("no coordinator is running at unix:" + sockets_ +
                                    "/meshrun/coordinator.sock"));
  EXPECT_THAT(result.err, HasSubstr("meshrun dev up"));
}

TEST_F(CommandTest, PlaintextOverTcpIsAWrongCall) {
  const Result result = Run({"ps", "--coordinator", "127.0.0.1:1"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, ::testing::StartsWith("meshrun: plaintext is refused on 127.0.0.1:1"));
}

TEST_F(CommandTest, ADeadlineExitsWith124) {
  // Connections are made by the kernel; nobody ever answers.
  const os::UniqueFd deaf(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(deaf.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(deaf.get(), 8), 0);
  ASSERT_EQ(::getsockname(deaf.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string where = fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
  const Result result =
      Run({"ps", "--timeout", "100ms", "--insecure-loopback", "--coordinator", where});
  EXPECT_EQ(result.code, 124);
  EXPECT_THAT(result.err, HasSubstr(where + " did not answer in time"));
}

TEST_F(CommandTest, CtrlCCancelsAndASecondOneKills) {
  const std::string fifo = Fifo();
  const pid_t run =
      Start({"run", "--kill-grace", "60s", "--", "sh", "-c",
             "trap '' TERM; echo $$ > " + fifo + "; while true; do sleep 0.05; done"});
  const pid_t rank = ReadPid(fifo);
  const os::UniqueFd rank_end = OpenPid(rank);
  EXPECT_FALSE(WaitReadable(rank_end.get(), std::chrono::milliseconds(0)));
  ::kill(run, SIGINT);
  ::kill(run, SIGINT);
  // The second may arrive while the first is pending; one more is a second one in any case.
  while (!WaitReadable(rank_end.get(), std::chrono::milliseconds(200))) ::kill(run, SIGINT);
  const Result result = Wait(run);
  EXPECT_EQ(result.code, 130);
  EXPECT_THAT(result.err, HasSubstr("cancelling"));
}

TEST_F(CommandTest, CtrlBackslashCancelsAsTheOthersDo) {
  const std::string fifo = Fifo();
  const pid_t run =
      Start({"run", "--", "sh", "-c", "echo $$ > " + fifo + "; while true; do sleep 0.05; done"});
  const os::UniqueFd rank_end = OpenPid(ReadPid(fifo));
  ::kill(run, SIGQUIT);
  EXPECT_TRUE(WaitReadable(rank_end.get(), std::chrono::seconds(20)));
  const Result result = Wait(run);
  EXPECT_EQ(result.code, 128 + SIGQUIT);
  EXPECT_THAT(result.err, HasSubstr("was cancelled"));
  EXPECT_THAT(result.err, HasSubstr("by SIGQUIT"));
}

TEST_F(CommandTest, ANodeThatWaitsForNodeZeroLeavesOnASignal) {
  const std::string secret = directory_ + "/secret";
  std::vector<std::string> words = {"run",
                                    "--nnodes=2",
                                    "--node-rank=1",
                                    "--master-addr=127.0.0.1",
                                    fmt::format("--master-port={}", FreePort()),
                                    "--rdzv-conf",
                                    "secret_file=" + secret,
                                    "true"};
  const auto waits = [this] {
    return os::ReadFile(directory_ + "/err").value_or("").find("waiting for") != std::string::npos;
  };
  for (const int signal : {SIGQUIT, SIGTERM}) {
    if (signal == SIGTERM) words.insert(words.begin() + 1, "--leave-on-signal");
    const pid_t run = Start(words);
    ASSERT_TRUE(testing::Eventually(waits));
    ::kill(run, signal);
    EXPECT_EQ(Wait(run).code, 128 + signal);
  }
}

// A scheduler gives all nodes the same flags.
TEST_F(CommandTest, ANodeThatCannotLeaveEndsBySigterm) {
  const std::vector<std::string> of_node_0 = {"--nnodes=1:2", "--node-rank=0",
                                              "--master-addr=127.0.0.1",
                                              fmt::format("--master-port={}", FreePort())};
  for (const std::vector<std::string>& flags : {std::vector<std::string>(), of_node_0}) {
    const std::string fifo = Fifo();
    std::vector<std::string> words = {"run", "--leave-on-signal"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), {"sh", "-c",
                               "trap 'echo got SIGTERM; exit 3' TERM; echo $$ > " + fifo +
                                   "; while :; do sleep 0.05; done"});
    const pid_t run = Start(words);
    ASSERT_GT(ReadPid(fifo), 0);
    ::kill(run, SIGTERM);
    const Result result = Wait(run);
    EXPECT_EQ(result.code, 128 + SIGTERM) << result.err;
    EXPECT_THAT(result.out, HasSubstr("got SIGTERM\n"));
    EXPECT_EQ(result.err.find("--leave-on-signal has no effect here") != std::string::npos,
              flags.empty());
  }
}

TEST_F(CommandTest, ANodeThatItsJobNeedsIsToldSoAtOnce) {
  const std::string fifo = Fifo();
  // Registries of their own, as on hosts of their own.
  const auto home = [this](int node) {
    const std::string path = fmt::format("{}/home{}", sockets_, node);
    std::filesystem::create_directories(path);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return std::map<std::string, std::string>{{"XDG_STATE_HOME", path}, {"XDG_RUNTIME_DIR", path}};
  };
  std::vector<pid_t> runs;
  const int port = FreePort();
  for (const int node : {0, 1}) {
    runs.push_back(
        StartProgram({Meshrun(), "run", "--nnodes=2", fmt::format("--node-rank={}", node),
                      "--master-addr=127.0.0.1", fmt::format("--master-port={}", port),
                      "--rdzv-conf", "join_timeout=30,secret_file=" + directory_ + "/secret", "sh",
                      "-c", "[ $RANK = 0 ] || echo $$ > " + fifo + "; exec sleep 600"},
                     home(node)));
  }
  ASSERT_GT(ReadPid(fifo), 0);
  const auto leave = [&](int node) { return Wait(StartProgram({Meshrun(), "leave"}, home(node))); };
  Result refused;
  ASSERT_TRUE(testing::Eventually([&] {
    refused = leave(1);
    return refused.err.find("no 'meshrun run'") == std::string::npos;
  }));
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr(" cannot leave: "));
  EXPECT_THAT(refused.err, HasSubstr("needs at least 2 nodes"));
  EXPECT_THAT(leave(0).err, HasSubstr("the job's coordinator runs here"));
  ::kill(runs[0], SIGTERM);
  EXPECT_EQ(Wait(runs[0]).code, 128 + SIGTERM);
  EXPECT_EQ(Wait(runs[1]).code, 1);
}

TEST_F(CommandTest, AReaderThatLeavesIsSaid) {
  const auto call = [this](const std::string& words) {
    return Wait(StartProgram(
        {"/bin/bash", "-c", "set -o pipefail; " + Meshrun() + " " + words + " | head -1"}));
  };
  const Result run = call("run -- sh -c 'while echo line; do :; done'");
  EXPECT_EQ(run.code, 128 + SIGPIPE);
  EXPECT_EQ(run.out, "line\n");
  EXPECT_THAT(run.err, HasSubstr("nobody reads the output any more: its ranks are ended\n"));
  DevUp(1);
  const Result follow =
      call("submit --follow --name talks -- sh -c 'while echo line; do sleep 0.05; done'");
  EXPECT_EQ(follow.code, 128 + SIGPIPE);
  EXPECT_THAT(follow.err, HasSubstr("nobody reads the output any more: talks-"));
  EXPECT_THAT(follow.err, HasSubstr(" goes on\n"));
  EXPECT_EQ(Run({"cancel", "talks", "--wait"}).code, 0);
}

TEST_F(CommandTest, NothingOutlivesAKilledRun) {
  const std::string fifo = Fifo();
  const pid_t run =
      Start({"run", "--", "sh", "-c", "setsid sh -c 'echo $$ > " + fifo + "; sleep 600' & wait"});
  const os::UniqueFd rank_end = OpenPid(ReadPid(fifo));
  ::kill(run, SIGKILL);
  EXPECT_TRUE(WaitReadable(rank_end.get(), std::chrono::seconds(10)));
  EXPECT_EQ(Wait(run).code, 1000 + SIGKILL);
}

TEST_F(CommandTest, ADevClusterRunsJobsAndIsFoundByEveryCommand) {
  DevUp(2);
  const Result nodes = Run({"nodes", "-o", "json"});
  ASSERT_EQ(nodes.code, 0) << nodes.err;
  EXPECT_EQ(json::parse(nodes.out)["nodes"].size(), 2u);

  const Result follow = Run({"submit", "--follow", "--nodes", "2", "--name", "both", "--", "sh",
                             "-c", "echo $NODE_RANK"});
  EXPECT_EQ(follow.code, 0) << follow.err;
  EXPECT_THAT(follow.out, HasSubstr("1: 1\n"));

  const Result big = Run({"submit", "--nproc", "4096", "--", "true"});
  EXPECT_EQ(big.code, 0);
  EXPECT_THAT(big.err, HasSubstr("QUEUED"));
  EXPECT_THAT(big.err, HasSubstr("4096"));

  const Result all = Run({"ps", "--all", "-o", "json"});
  const json jobs = json::parse(all.out)["jobs"];
  ASSERT_EQ(jobs.size(), 2u);
  const std::string finished = jobs[1]["jobId"];
  EXPECT_EQ(jobs[1]["state"], "JOB_STATE_SUCCEEDED");
  const Result one = Run({"logs", finished, "--ranks", "1"});
  EXPECT_EQ(one.out, "1\n");
  EXPECT_EQ(one.err, "");
  const Result none = Run({"logs", finished, "--stream", "stderr"});
  EXPECT_EQ(none.out, "");
  EXPECT_THAT(none.err, HasSubstr("the ranks and streams that you ask for have written nothing"));
  const Result points = Run({"metrics", finished, "--csv"});
  EXPECT_EQ(points.out, "time,step,loss\n");
  EXPECT_THAT(points.err, HasSubstr("has reported no step"));
  EXPECT_THAT(Run({"describe", finished}).out, HasSubstr("SUCCEEDED"));
  EXPECT_EQ(json::parse(Run({"describe", finished, "-o", "json"}).out)["job"]["worldSize"], 2);
  EXPECT_EQ(Run({"cancel", "true"}).code, 0);
  EXPECT_EQ(Run({"describe", "bohh"}).code, 2);

  EXPECT_EQ(Run({"dev", "up", "--workers", "2"}).code, 0);
  EXPECT_THAT(Run({"dev", "status"}).out, Not(HasSubstr("ENDED")));
  EXPECT_EQ(Run({"dev", "down"}).code, 0);
  dev_up_ = false;
  EXPECT_THAT(Run({"dev", "status"}).err, HasSubstr("no dev cluster"));
}

// Each run has a coordinator of its own, which knows no other job.
TEST_F(CommandTest, RunsAreNamedByAStartThatNoOtherJobHas) {
  // The registry of runs lies where sockets do.
  ::setenv("XDG_RUNTIME_DIR", sockets_.c_str(), 1);
  DevUp(1);
  const std::string name = fmt::format("train{}", ::getpid());
  ASSERT_EQ(Run({"submit", "--hold", "--name", name + "-held", "--", "true"}).code, 0);
  std::vector<pid_t> runs;
  for (const char* part : {"-a", "-b"}) {
    const std::string fifo = Fifo();
    runs.push_back(Start(
        {"run", "--name", name + part, "sh", "-c", "echo $$ > " + fifo + "; exec sleep 600"}));
    ASSERT_GT(ReadPid(fifo), 0);
  }
  // A rank runs before its coordinator hears of it.
  const auto listed = [&] {
    const std::string ids = Run({"ps", "-q", "--state", "running"}).out;
    return ids.find(name + "-a-") != std::string::npos &&
           ids.find(name + "-b-") != std::string::npos;
  };
  ASSERT_TRUE(testing::Eventually(listed));
  const Result several = Run({"cancel", name + "-"});
  EXPECT_EQ(several.code, 2);
  EXPECT_THAT(several.err, HasSubstr("begins the ids of 3 jobs: " + name + "-a-"));
  EXPECT_THAT(several.err, HasSubstr(name + "-held-"));
  EXPECT_THAT(Run({"events", name + "-a"}).out, HasSubstr("JobSubmitted"));
  const Result stack = Run({"stack", "-o", "json", name + "-b"});
  EXPECT_EQ(stack.code, 0) << stack.err;
  EXPECT_THAT(Run({"hold", name + "-a"}).out, HasSubstr("RUNNING"));
  EXPECT_EQ(Run({"cancel", name + "-a", name + "-b", name + "-held"}).code, 0);
  for (const pid_t run : runs) EXPECT_EQ(Wait(run).code, 1);
}

TEST_F(CommandTest, JobsAreHeldReleasedLimitedAndExplained) {
  DevUp(1);
  const Result held = Run({"submit", "--hold", "--name", "later", "--", "true"});
  EXPECT_THAT(held.err, HasSubstr("QUEUED: held: 'meshrun release"));
  EXPECT_THAT(Run({"priority", "--set", "7", "later"}).out, HasSubstr("QUEUED: held"));
  EXPECT_THAT(Run({"ps"}).out, HasSubstr("PRIORITY"));
  EXPECT_EQ(Run({"priority", "--set", "high", "later"}).code, 2);
  EXPECT_EQ(Run({"release", "later"}).code, 0);
  EXPECT_EQ(Run({"logs", "-f", "later"}).code, 0);
  EXPECT_THAT(Run({"events", "later"}).out, HasSubstr("JobReleased"));
  EXPECT_THAT(Run({"why", "later"}).out, HasSubstr("nothing has gone wrong"));
  const Result late = Run({"hold", "later"});
  EXPECT_EQ(late.code, 2);
  EXPECT_THAT(late.err, HasSubstr("has ended"));
  // 3 is its own; 124 is that of every deadline.
  EXPECT_EQ(Run({"submit", "--follow", "--name", "breaks", "--", "sh", "-c", "exit 3"}).code, 1);
  const Result why = Run({"why", "breaks"});
  EXPECT_THAT(why.out, HasSubstr("first cause"));
  EXPECT_THAT(why.out, HasSubstr("exit code 3"));
  const Result limited =
      Run({"submit", "--follow", "--name", "slow", "--time-limit", "200ms", "--", "sleep", "600"});
  EXPECT_EQ(limited.code, 124);
  EXPECT_THAT(limited.err, HasSubstr("TIMED OUT: it ran for its time limit of 200ms"));
}

TEST_F(CommandTest, NodesAreDrainedUndrainedAndForgotten) {
  DevUp(1);
  const std::string node = json::parse(Run({"nodes", "-o", "json"}).out)["nodes"][0]["name"];
  EXPECT_THAT(Run({"drain", node, "--reason", "a fan"}).out, HasSubstr("DRAINED"));
  EXPECT_THAT(Run({"nodes"}).out, HasSubstr("a fan"));
  EXPECT_THAT(Run({"submit", "--name", "waits", "--", "true"}).err,
              HasSubstr("1 that is draining does not count"));
  EXPECT_THAT(Run({"undrain", node}).out, HasSubstr("HEALTHY"));
  EXPECT_EQ(Run({"logs", "-f", "waits"}).code, 0);
  EXPECT_THAT(Run({"events", "--node", node}).out, HasSubstr("NodeUndrained"));
  const Result alive = Run({"node", "rm", node});
  EXPECT_EQ(alive.code, 2);
  EXPECT_THAT(alive.err, HasSubstr("is not lost: stop its worker first"));
  EXPECT_EQ(Run({"drain", "nobody"}).code, 2);
  EXPECT_EQ(Run({"drain", node, "--now", "--deadline", "1h"}).code, 2);
}

TEST_F(CommandTest, AJobFileRunsAsFlagsDo) {
  DevUp(2);
  std::ofstream(directory_ + "/job.yaml") << "name: from-file\n"
                                             "command: [sh, -c, 'echo $GREETING $WORLD_SIZE']\n"
                                             "nodes: 2\n"
                                             "procs_per_node: 1\n"
                                             "env: {GREETING: hello}\n";
  const Result result = Run({"submit", "-f", directory_ + "/job.yaml", "--follow"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("0: hello 2\n"));
  EXPECT_THAT(result.out, HasSubstr("1: hello 2\n"));
  EXPECT_THAT(result.err, HasSubstr("from-file-"));
}

TEST_F(CommandTest, LogsAreFollowedToTheJobsEnd) {
  DevUp(1);
  const std::string fifo = Fifo();
  const Result submitted = Run({"submit", "--name", "talks", "-o", "json", "--", "sh", "-c",
                                "echo first; read line < " + fifo + "; echo $line; echo last"});
  ASSERT_EQ(submitted.code, 0) << submitted.err;
  const std::string id = json::parse(submitted.out)["jobId"];
  const pid_t logs = Start({"logs", "-f", id});
  // Returns when the rank reads: it runs, and its end is not yet there.
  std::ofstream(fifo) << "second\n";
  const Result result = Wait(logs);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "first\nsecond\nlast\n");
}

TEST_F(CommandTest, CancelAndDevStatusSpeakJson) {
  EXPECT_FALSE(json::parse(Run({"dev", "status", "-o", "json"}).out)["running"]);
  DevUp(2);
  const json status = json::parse(Run({"dev", "status", "-o", "json"}).out);
  EXPECT_TRUE(status["running"]);
  EXPECT_TRUE(status["coordinator"]["running"]);
  ASSERT_EQ(status["workers"].size(), 2u);
  EXPECT_NE(status["workers"][0]["pid"], status["workers"][1]["pid"]);
  const std::string fifo = Fifo();
  const Result submitted =
      Run({"submit", "--name", "waits", "--", "sh", "-c", "echo $$ > " + fifo + "; sleep 600"});
  ASSERT_EQ(submitted.code, 0) << submitted.err;
  ReadPid(fifo);
  const Result cancelled =
      Run({"cancel", "waits", "--wait", "--now", "--reason", "enough", "-o", "json"});
  EXPECT_EQ(cancelled.code, 0) << cancelled.err;
  const json jobs = json::parse(cancelled.out)["jobs"];
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0]["state"], "JOB_STATE_CANCELLED");
  EXPECT_THAT(jobs[0]["reason"].get<std::string>(), HasSubstr("enough"));
}

TEST_F(CommandTest, TheDoctorFindsTheProgramsAndTheCluster) {
  DevUp(1);
  const std::string address = json::parse(Run({"dev", "status", "-o", "json"}).out)["address"];
  const Result result = Run({"doctor", "-o", "json"});
  const json report = json::parse(result.out);
  std::map<std::string, std::string> levels;
  for (const json& check : report["checks"]) levels[check["what"]] = check["level"];
  // How this machine is set up is not the test's concern; what meshrun brings is.
  EXPECT_EQ(result.code, report["ok"].get<bool>() ? 0 : 1);
  for (const std::string& what :
       {std::string("meshrun"), std::string("meshrun-coordinator"), std::string("meshrun-worker"),
        "coordinator " + address, std::string("clock")}) {
    EXPECT_EQ(levels[what], "ok") << what << " in " << result.out;
  }
  // The kernel gives this machine's nodes some limits, or none.
  const json node = json::parse(Run({"nodes", "-o", "json"}).out).at("nodes").at(0);
  const json limits = node.at("resources").value("limits", json::array());
  for (const std::string limit : {"memory", "cpu", "pids"}) {
    const bool is_kept = std::find(limits.begin(), limits.end(), json(limit)) != limits.end() ||
                         (limit == "cpu" && std::find(limits.begin(), limits.end(),
                                                      json("cpu-quota")) != limits.end());
    EXPECT_EQ(levels[limit + " limits"], is_kept ? "" : "warn") << result.out << node;
  }
  EXPECT_THAT(Run({"doctor"}).out, HasSubstr("coordinator " + address));
}

// In a mount namespace of its own.
TEST_F(CommandTest, TheDoctorWarnsOfASmallSharedMemory) {
  const auto check = [this](const std::string& size) {
    const Result result = Wait(StartProgram(
        {"/bin/sh", "-c",
         fmt::format("exec unshare -m sh -c 'mount -t tmpfs -o size={} tmpfs /dev/shm || exit 77; "
                     "exec \"$0\" doctor -o json' '{}' || exit 77",
                     size, Meshrun())}));
    if (result.out.empty()) return json();
    // Kept for the loop: a reference into a temporary would outlive it.
    const json answer = json::parse(result.out);
    for (const json& check : answer.at("checks")) {
      if (check["what"] == "/dev/shm") return check;
    }
    return json();
  };
  const json small = check("4m");
  if (small.is_null()) GTEST_SKIP() << "no mount namespace may be made here";
  EXPECT_EQ(small["level"], "warn");
  EXPECT_THAT(small["found"].get<std::string>(), HasSubstr("room for 0 ranks"));
  EXPECT_THAT(small["advice"].get<std::string>(),
              ::testing::AllOf(HasSubstr("--shm-size"), HasSubstr("UCX_TLS=tcp,self")));
  const json large = check("16g");
  EXPECT_EQ(large["level"], "ok") << large;
  EXPECT_EQ(large["advice"], "");
}

grpc::ByteBuffer Bytes(std::string_view text) {
  const grpc::Slice slice(text.data(), text.size());
  return grpc::ByteBuffer(&slice, 1);
}

std::string Text(const grpc::ByteBuffer& bytes) {
  grpc::Slice slice;
  EXPECT_TRUE(bytes.DumpToSingleSlice(&slice).ok());
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

// Their protos are not installed everywhere: requests and answers as bytes.
TEST_F(CommandTest, ACoordinatorAnswersHealthChecksAndReflection) {
  DevUp(1);
  const std::string address = json::parse(Run({"dev", "status", "-o", "json"}).out)["address"];
  const auto channel = rpc::MakeChannel("test", address, {});
  ASSERT_TRUE(channel.ok()) << channel.status();
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(20);

  grpc::ByteBuffer answer;
  const auto health = [&](const std::string& service) {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    // HealthCheckRequest{service: ...}
    const std::string request =
        service.empty() ? "" : "\x0a" + std::string(1, static_cast<char>(service.size())) + service;
    return grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
        channel->get(),
        grpc::internal::RpcMethod("/grpc.health.v1.Health/Check",
                                  grpc::internal::RpcMethod::NORMAL_RPC),
        &context, Bytes(request), &answer);
  };
  for (const char* service :
       {"", "meshrun.ready", "meshrun.v1.JobService", "meshrun.v1.ClusterService",
        "meshrun.v1.SessionService", "meshrun.v1.StoreService"}) {
    ASSERT_TRUE(health(service).ok()) << service;
    // HealthCheckResponse{status: SERVING}
    EXPECT_EQ(Text(answer), "\x08\x01") << service;
  }
  EXPECT_EQ(health("meshrun.v1.NoService").error_code(), grpc::StatusCode::NOT_FOUND);

  grpc::ClientContext reflection;
  reflection.set_deadline(deadline);
  const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          channel->get(),
          grpc::internal::RpcMethod(
              "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
              grpc::internal::RpcMethod::BIDI_STREAMING),
          &reflection));
  // ServerReflectionRequest{list_services: "*"}
  ASSERT_TRUE(stream->Write(Bytes("\x3a\x01*")));
  ASSERT_TRUE(stream->WritesDone());
  ASSERT_TRUE(stream->Read(&answer));
  for (const char* service : {"meshrun.v1.JobService", "meshrun.v1.ClusterService",
                              "meshrun.v1.SessionService", "grpc.health.v1.Health"}) {
    EXPECT_THAT(Text(answer), HasSubstr(service));
  }
  EXPECT_FALSE(stream->Read(&answer));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(CommandTest, AQueueTimeoutExitsWith75) {
  DevUp(1);
  const Result result =
      Run({"submit", "--follow", "--queue-timeout", "1s", "--nproc", "4096", "--", "true"});
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_THAT(result.err, HasSubstr("4096"));
}

TEST_F(CommandTest, HelpAndCompletionNeedNothing) {
  EXPECT_THAT(Run({"--help"}).out, HasSubstr("submit"));
  EXPECT_THAT(Run({"help", "dev", "up"}).out, HasSubstr("Usage: meshrun dev up"));
  EXPECT_THAT(Run({"run", "--help"}).out, HasSubstr("Examples:"));
  EXPECT_THAT(Run({"completion", "bash"}).out, HasSubstr("complete -o"));
  EXPECT_THAT(Run({"--version"}).out, HasSubstr("meshrun "));
}

}  // namespace
}  // namespace meshrun::client
