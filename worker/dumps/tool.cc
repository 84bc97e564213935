#include "worker/dumps/tool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/os/fd.h"
#include "core/os/process.h"
#include "worker/dumps/traced_process.h"

namespace meshrun::worker {
namespace {

constexpr size_t kMostOutput = size_t{4} << 20;
// From SIGTERM to SIGKILL.
constexpr std::chrono::seconds kDetachTime(1);

std::string ReadUntil(int fd, std::chrono::steady_clock::time_point deadline, bool* in_time) {
  std::string out;
  char buffer[4096];
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd wanted = {fd, POLLIN, 0};
    const int ready = ::poll(&wanted, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (ready < 0 && errno == EINTR) continue;
    *in_time = ready > 0;
    if (ready <= 0) return out;
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n <= 0) return out;
    if (out.size() < kMostOutput) out.append(buffer, static_cast<size_t>(n));
  }
}

}  // namespace

ToolResult RunTool(const std::vector<std::string>& argv, pid_t target,
                   std::chrono::milliseconds timeout) {
  ToolResult result;
  os::SpawnOptions spawn;
  spawn.argv = argv;
  // Debuggers would ask servers for debug information, for longer than anybody waits here.
  spawn.env = {{"DEBUGINFOD_URLS", ""}};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    result.output = "no pipe";
    return result;
  }
  const os::UniqueFd read_end(ends[0]);
  os::UniqueFd write_end(ends[1]);
  spawn.stdout_fd = spawn.stderr_fd = write_end.get();
  TracedProcess traced(target);
  const auto child = os::Spawn(spawn);
  if (!child.ok()) {
    result.output = std::string(child.status().message());
    return result;
  }
  write_end.reset();
  result.output =
      ReadUntil(read_end.get(), std::chrono::steady_clock::now() + timeout, &result.in_time);
  if (!result.in_time) {
    result.output += fmt::format("\n(no more within {} ms)\n", timeout.count());
    traced.LookAgain();
    ::kill(-*child, SIGTERM);
    bool ended = false;
    result.output +=
        ReadUntil(read_end.get(), std::chrono::steady_clock::now() + kDetachTime, &ended);
    ::kill(-*child, SIGKILL);
  }
  int status = 0;
  while (::waitpid(*child, &status, 0) < 0 && errno == EINTR) {
  }
  result.succeeded = result.in_time && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (!result.succeeded) traced.LetGo();
  return result;
}

}  // namespace meshrun::worker
