// A process that a test program forks before its first test, and that forks ranks from then on: a
// rank begins with LibTorch loaded, and with no thread, lock or handle of the tests.
//
//   ForkServer server(run_rank);                                    in main, before any thread
//   const pid_t rank = server.start("all_reduce", {"RANK=0"}, pipe);
//   waitpid(rank, &status, 0);                                      it is this process's child
//
// Ranks see what the program was when the server began, not what tests have changed since: memory,
// namespaces, directory. Beside a program that is executed they lack: addresses of their own,
// variables that libraries read as they are loaded, and at the end what was registered before
// main(). Any thread. The server ends with its program. Errors: std::system_error.
#pragma once

#include <sys/types.h>

#include <mutex>
#include <string>
#include <vector>

namespace meshrun {

class ForkServer {
 public:
  // What a forked process runs; its value is the exit code.
  using Body = int (*)(const std::string& argument);

  // Makes this process the one that adopts the ranks (PR_SET_CHILD_SUBREAPER).
  explicit ForkServer(Body body);
  ~ForkServer();
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;

  // `environment` ("NAME=value") is all that it has; `output` becomes its stdout and stderr.
  pid_t start(const std::string& argument, const std::vector<std::string>& environment, int output);

 private:
  std::mutex mutex_;
  int socket_ = -1;
  pid_t server_ = -1;
  pid_t owner_ = -1;  // a fork of it leaves the server alone
};

}  // namespace meshrun
