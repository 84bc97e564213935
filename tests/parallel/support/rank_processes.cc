#include "tests/parallel/support/rank_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string_view>
#include <thread>

#include "gtest/gtest.h"
#include "parallel/base/network.h"
#include "tests/parallel/support/fork_server.h"

extern char** environ;

namespace meshrun {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr char kFunctionVariable[] = "MESHRUN_TEST_RANK_FUNCTION";

std::map<std::string, std::function<void()>>& functions() {
  static auto& functions = *new std::map<std::string, std::function<void()>>;
  return functions;
}

bool is_launcher_variable(std::string_view name) {
  for (const char* exact :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"}) {
    if (name == exact) return true;
  }
  for (const char* prefix : {"MASTER_", "MESHRUN_", "SLURM_", "OMPI_", "PMIX_", "PMI_", "PALS_",
                             "MPI_LOCAL", "TORCHELASTIC_", "PHYSICSNEMO_"}) {
    if (name.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

struct Process {
  pid_t pid = -1;
  int output = -1;
  Clock::time_point start;
};

// Counts what fails in this process, also after a fork from one where something had failed.
class FailureCounter : public ::testing::EmptyTestEventListener {
 public:
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.failed()) ++count;
  }
  static inline int count = 0;
};

// Once per process; a fork of one that counts already, too.
void count_failures() {
  static const bool counts = [] {
    ::testing::UnitTest::GetInstance()->listeners().Append(new FailureCounter);
    return true;
  }();
  static_cast<void>(counts);
}

int run_rank(const std::string& name) {
  count_failures();
  const int failures_before = FailureCounter::count;
  const auto found = functions().find(name);
  if (found == functions().end()) {
    std::fprintf(stderr, "no rank function \"%s\"\n", name.c_str());
    return 2;
  }
  try {
    found->second();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "escaped: %s\n", error.what());
    return 1;
  }
  return FailureCounter::count > failures_before ? 1 : 0;
}

// Fork server of run_tests_or_rank(). Null in a rank, and in a program that has a main() of its
// own.
ForkServer* fork_server = nullptr;

Process start(const std::string& function, const Variables& variables, RankStart how) {
  std::vector<std::string> environment = {std::string(kFunctionVariable) + "=" + function};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    // getenv() finds the first of two entries of one name, so the rank's own replaces this one.
    if (!is_launcher_variable(name) && variables.count(std::string(name)) == 0) {
      environment.emplace_back(text);
    }
  }
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  Process process{.output = ends[0], .start = Clock::now()};
  if (how == RankStart::kForkAtMain) {
    if (fork_server == nullptr) {
      std::fputs("ranks fork at main() where run_tests_or_rank() is main(): name a RankStart\n",
                 stderr);
      std::abort();
    }
    process.pid = fork_server->start(function, environment, ends[1]);
    close(ends[1]);
    return process;
  }
  std::vector<char*> pointers;
  for (std::string& entry : environment) pointers.push_back(entry.data());
  pointers.push_back(nullptr);
  std::fflush(nullptr);
  process.pid = fork();
  if (process.pid == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    if (how == RankStart::kFork) {
      environ = pointers.data();
      std::exit(run_rank(function));
    }
    char name[] = "rank";
    char* arguments[] = {name, nullptr};
    execve("/proc/self/exe", arguments, pointers.data());
    _exit(127);
  }
  close(ends[1]);
  return process;
}

// Reads until the process has closed its output, or the deadline kills it.
RankResult finish(const Process& process, Clock::time_point deadline) {
  RankResult result;
  char buffer[4096];
  while (true) {
    pollfd waiting{process.output, POLLIN, 0};
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    if (left.count() <= 0 || poll(&waiting, 1, static_cast<int>(left.count())) == 0) {
      kill(process.pid, SIGKILL);
      result.output += "[killed at the test's deadline]\n";
      break;
    }
    const ssize_t count = read(process.output, buffer, sizeof(buffer));
    if (count <= 0) break;
    result.output.append(buffer, static_cast<size_t>(count));
  }
  close(process.output);
  int status = 0;
  waitpid(process.pid, &status, 0);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  result.elapsed = std::chrono::duration_cast<milliseconds>(Clock::now() - process.start);
  return result;
}

}  // namespace

bool register_rank_function(const std::string& name, std::function<void()> function) {
  return functions().emplace(name, std::move(function)).second;
}

int free_port() {
  // The port is outside of the range from which the kernel chooses (ip_local_port_range): otherwise
  // one of another test's connections could take it between this call and its use.
  constexpr int kFirst = 10000, kLast = 32000;
  std::random_device random;
  std::uniform_int_distribution<int> any(kFirst, kLast);
  while (true) {
    const int port = any(random);
    if (bind_port("127.0.0.1", port).ok()) return port;
  }
}

std::vector<Variables> env_ranks(int world_size) {
  const std::string port = std::to_string(free_port());
  std::vector<Variables> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back({{"RANK", std::to_string(rank)},
                     {"WORLD_SIZE", std::to_string(world_size)},
                     {"LOCAL_RANK", std::to_string(rank)},
                     {"MASTER_ADDR", "127.0.0.1"},
                     {"MASTER_PORT", port}});
  }
  return ranks;
}

std::vector<RankResult> run_ranks(const std::string& function, const std::vector<Variables>& ranks,
                                  milliseconds deadline, RankStart how) {
  const Clock::time_point end = Clock::now() + deadline;
  std::vector<Process> processes;
  for (const Variables& variables : ranks) processes.push_back(start(function, variables, how));
  std::vector<RankResult> results;
  // At once: a rank whose output nobody reads stops at 64 KiB, and with it its peers.
  results.resize(processes.size());
  std::vector<std::thread> readers;
  for (size_t rank = 0; rank < processes.size(); ++rank) {
    readers.emplace_back([&, rank] { results[rank] = finish(processes[rank], end); });
  }
  for (std::thread& reader : readers) reader.join();
  return results;
}

std::vector<RankResult> run_ranks(const std::string& function, const std::vector<Variables>& ranks,
                                  RankStart start) {
  return run_ranks(function, ranks, std::chrono::minutes(4), start);
}

void expect_success(const std::vector<RankResult>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].exit_code, 0)
        << "rank " << rank << ", signal " << results[rank].signal << ":\n"
        << results[rank].output;
  }
}

int run_tests_or_rank(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const char* function = std::getenv(kFunctionVariable);
  if (function != nullptr) return run_rank(function);
  ForkServer server(run_rank);
  fork_server = &server;
  return RUN_ALL_TESTS();
}

}  // namespace meshrun
