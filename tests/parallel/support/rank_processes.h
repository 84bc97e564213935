// Real rank processes for tests: the test binary starts itself once per rank and runs a function
// registered by name.
//
//   const bool kRegistered = register_rank_function("all_reduce", [] { ... EXPECT_EQ(...); });
//   TEST(...) { expect_success(run_ranks("all_reduce", env_ranks(4))); }
//
// The binary's main() is rank_processes_main.cc. A rank fails where an expectation fails or an
// exception escapes. Every run has a deadline, after which its ranks are killed and reported.
//
// A rank starts in one of three ways:
//   kForkAtMain  a fork of this program as it was before its first test: some milliseconds; what it
//                lacks beside kExec: fork_server.h
//   kFork        a fork of this process as it is, with what tests have set up (namespaces); nothing
//                outside the ranks may have started a thread or UCX
//   kExec        the program executed anew, half a second of loading LibTorch: for GPUs, and where
//                start, exit or addresses of its own matter
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace meshrun {

using Variables = std::map<std::string, std::string>;

struct RankResult {
  int exit_code = -1;  // -1 where a signal ended it
  int signal = 0;
  std::string output;  // stdout and stderr
  std::chrono::milliseconds elapsed{0};
};

bool register_rank_function(const std::string& name, std::function<void()> function);

// RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and a free MASTER_PORT, per rank.
std::vector<Variables> env_ranks(int world_size);
int free_port();

enum class RankStart { kForkAtMain, kFork, kExec };

// Starts one process per entry, whose variables replace this program's of the same names. Nothing
// else of a launcher is in its environment.
std::vector<RankResult> run_ranks(const std::string& function, const std::vector<Variables>& ranks,
                                  std::chrono::milliseconds deadline = std::chrono::minutes(4),
                                  RankStart start = RankStart::kForkAtMain);

std::vector<RankResult> run_ranks(const std::string& function, const std::vector<Variables>& ranks,
                                  RankStart start);

void expect_success(const std::vector<RankResult>& results);

// The body of main(): runs the rank function that the environment names, else all tests.
int run_tests_or_rank(int argc, char** argv);

}  // namespace meshrun
