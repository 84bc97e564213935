#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/os/process.h"
#include "core/signal_name.h"
#include "core/text.h"
#include "core/utf8.h"
#include "worker/health/host_checks.h"

namespace meshrun::worker {
namespace {

using Time = std::chrono::steady_clock::time_point;

// The end of the output is kept.
constexpr size_t kKeptBytes = 4096;
constexpr size_t kLongestLine = 200;
constexpr std::chrono::milliseconds kPause(20);

std::string LastLine(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  const size_t begin = text.rfind('\n');
  text = EscapeControls(begin == std::string::npos ? text : text.substr(begin + 1));
  return std::string(Utf8Prefix(text, kLongestLine));
}

// Reads until the process has ended, whoever else may hold the pipe. Absent: it has not ended by
// the deadline.
std::optional<int> AwaitEnd(pid_t pid, int fd, Time deadline, std::string* output) {
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  char buffer[kKeptBytes];
  bool open = true;
  while (true) {
    int status = 0;
    const bool ended = ::waitpid(pid, &status, WNOHANG) == pid;
    ssize_t size = 0;
    while (open && (size = ::read(fd, buffer, sizeof(buffer))) > 0) {
      output->append(buffer, size);
      if (output->size() > kKeptBytes) output->erase(0, output->size() - kKeptBytes);
      // A program that never stops writing.
      if (!ended && std::chrono::steady_clock::now() >= deadline) break;
    }
    open = open && size < 0;
    if (ended) return status;
    if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
    pollfd wait = {.fd = open ? fd : -1, .events = POLLIN, .revents = 0};
    ::poll(&wait, 1, kPause.count());
  }
}

}  // namespace

std::vector<Problem> RunHealthCheck(const std::string& program, const std::string& node_name,
                                    std::chrono::nanoseconds timeout) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    const absl::Status status = os::ErrnoStatus(errno, program);
    return {std::string(status.message())};
  }
  const os::UniqueFd output_end(ends[0]);
  os::UniqueFd input_end(ends[1]);
  const auto pid = os::Spawn({.argv = {program},
                              .env = {{"MESHRUN_NODE_NAME", node_name}},
                              .stdout_fd = input_end.get(),
                              .stderr_fd = input_end.get()});
  if (!pid.ok()) {
    return {fmt::format("the health check {} cannot be started ({})", program,
                        std::string(pid.status().message()))};
  }
  input_end.reset();
  std::string output;
  const auto status =
      AwaitEnd(*pid, output_end.get(), std::chrono::steady_clock::now() + timeout, &output);
  if (!status.has_value()) {
    ::kill(-*pid, SIGKILL);
    while (::waitpid(*pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return {fmt::format("the health check {} has not ended within {}", program,
                        FormatDuration(timeout))};
  }
  if (WIFEXITED(*status) && WEXITSTATUS(*status) == 0) return {};
  const std::string how = WIFEXITED(*status)
                              ? fmt::format("exited with {}", WEXITSTATUS(*status))
                              : fmt::format("was ended by {}", SignalName(WTERMSIG(*status)));
  const std::string line = LastLine(output);
  return {fmt::format("the health check {} {}{}{}", program, how, line.empty() ? "" : ": ", line)};
}

}  // namespace meshrun::worker
