// Runs the meshrun command as a person does: real daemons, real ranks, standard streams, exit
// codes.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/os/process.h"

namespace meshrun::client {

struct Result {
  int code = -1;
  std::string out;
  std::string err;
};

class CommandTest : public ::testing::Test {
 protected:
  CommandTest() : directory_(fmt::format("{}/command.{}", ::testing::TempDir(), ::getpid())) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    ::unsetenv("MESHRUN_COORDINATOR");
    ::unsetenv("XDG_RUNTIME_DIR");
    char sockets[] = "/tmp/meshrun-command-test-XXXXXX";
    EXPECT_NE(::mkdtemp(sockets), nullptr);
    sockets_ = sockets;
    ::setenv("XDG_STATE_HOME", directory_.c_str(), 1);
  }
  ~CommandTest() override {
    if (dev_up_) Run({"dev", "down"});
    std::filesystem::remove_all(directory_);
    std::filesystem::remove_all(sockets_);
  }

  static std::string Meshrun() { return std::filesystem::absolute("client/meshrun"); }
  pid_t Start(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), Meshrun());
    return StartProgram(std::move(arguments));
  }
  pid_t StartProgram(std::vector<std::string> argv, std::map<std::string, std::string> env = {}) {
    os::SpawnOptions options;
    options.env = std::move(env);
    options.argv = std::move(argv);
    const os::UniqueFd out(
        ::open((directory_ + "/out").c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600));
    const os::UniqueFd err(
        ::open((directory_ + "/err").c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600));
    options.stdout_fd = out.get();
    options.stderr_fd = err.get();
    const auto pid = os::Spawn(options);
    EXPECT_TRUE(pid.ok()) << pid.status();
    return pid.value_or(-1);
  }
  Result Wait(pid_t pid) {
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    Result result;
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    result.out = os::ReadFile(directory_ + "/out").value_or("");
    result.err = os::ReadFile(directory_ + "/err").value_or("");
    return result;
  }
  Result Run(const std::vector<std::string>& arguments) { return Wait(Start(arguments)); }

  void DevUp(int workers) {
    const Result up = Run({"dev", "up", "--workers", std::to_string(workers), "--slots", "2"});
    ASSERT_EQ(up.code, 0) << up.err;
    dev_up_ = true;
  }
  // Opens a fifo's read end and returns what the first writer says: a rank's way to tell that it
  // runs.
  std::string Fifo() {
    const std::string path = fmt::format("{}/fifo{}", directory_, ++fifos_);
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
    return path;
  }
  static pid_t ReadPid(const std::string& fifo) {
    std::ifstream in(fifo);
    pid_t pid = 0;
    in >> pid;
    return pid;
  }

  // A port of 127.0.0.1 that nobody has: below those that workers give to jobs, and below those
  // that the kernel gives to connections.
  static int FreePort() {
    std::random_device random;
    std::uniform_int_distribution<int> any(10000, 19999);
    while (true) {
      const int port = any(random);
      sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address.sin_port = htons(static_cast<uint16_t>(port));
      const os::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const auto* const place = reinterpret_cast<const sockaddr*>(&address);
      if (::bind(fd.get(), place, sizeof(address)) == 0) return port;
    }
  }

  const std::string directory_;
  // Its path is short.
  std::string sockets_;
  int fifos_ = 0;
  bool dev_up_ = false;
};

}  // namespace meshrun::client
