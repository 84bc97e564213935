#include "tests/worker/support/processes.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "core/os/fd.h"
#include "core/os/files.h"

namespace meshrun::testing {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
  char path[] = "/tmp/mrtXXXXXX";
  path_ = ::mkdtemp(path);
}

TemporaryDirectory::~TemporaryDirectory() { (void)os::RemoveTree(path_); }

std::string WorkerProgram() { return std::filesystem::absolute("worker/meshrun-worker").string(); }

bool Eventually(const std::function<bool()>& condition) {
  const auto deadline = Clock::now() + kPatience;
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    ::poll(nullptr, 0, 2);
  }
  return true;
}

bool AwaitGone(pid_t pid) {
  const os::UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) return errno == ESRCH;
  pollfd poll_fd = {fd.get(), POLLIN, 0};
  return ::poll(&poll_fd, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) == 1;
}

int AwaitExit(pid_t pid) {
  const bool gone = AwaitGone(pid);
  if (!gone) ::kill(pid, SIGKILL);
  int status = -1;
  ::waitpid(pid, &status, 0);
  return gone ? status : -1;
}

pid_t AwaitPid(const std::string& path) {
  pid_t pid = -1;
  Eventually([&] {
    const auto content = os::ReadFile(path);
    if (!content.ok() || !content->ends_with('\n')) return false;
    pid = static_cast<pid_t>(std::stol(*content));
    return true;
  });
  return pid;
}

}  // namespace meshrun::testing
