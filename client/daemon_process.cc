#include "client/daemon_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>

#include "core/exit_codes.h"
#include "core/os/files.h"
#include "core/os/process.h"
#include "core/signal_name.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

constexpr int kTailLines = 5;

// "; its log ends:", and its last lines.
std::string LogEnd(const std::string& path) {
  const std::string text = LogTail(path, kTailLines);
  std::string_view tail = text;
  if (tail.empty()) return "";
  std::string out = "; its log ends:";
  while (true) {
    const size_t end = tail.find('\n');
    out += std::string(kLogLine) + std::string(tail.substr(0, end));
    if (end == std::string_view::npos) return out;
    tail.remove_prefix(end + 1);
  }
}

}  // namespace

std::string LogTail(const std::string& path, int lines) {
  auto log = os::ReadFile(path);
  if (!log.ok()) return "";
  while (!log->empty() && log->back() == '\n') log->pop_back();
  size_t from = log->size();
  for (int i = 0; i < lines && from != std::string::npos && from > 0; ++i) {
    from = log->rfind('\n', from - 1);
  }
  return from == std::string::npos ? *log : log->substr(from == 0 ? 0 : from + 1);
}

os::UniqueFd OpenPid(pid_t pid) {
  return os::UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool WaitReadable(int fd, std::chrono::nanoseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  pollfd waiting{fd, POLLIN, 0};
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    const int n = ::poll(&waiting, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (n > 0) return true;
    if (n == 0 && left.count() <= 0) return false;
    if (n < 0 && errno != EINTR) return false;
  }
}

absl::StatusOr<DaemonProcess> DaemonProcess::Start(const Options& options) {
  MESHRUN_ASSIGN_OR_RETURN(const std::string path, os::FindOwnProgram(options.program));
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return os::ErrnoStatus(errno, "pipe");
  const os::UniqueFd ready_write(pipe[1]);
  DaemonProcess daemon;
  daemon.ready_ = os::UniqueFd(pipe[0]);
  daemon.program_ = options.program;
  daemon.log_path_ = options.log_path;
  const os::UniqueFd log(
      ::open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log) return os::ErrnoStatus(errno, options.log_path);

  os::SpawnOptions spawn;
  spawn.argv = {path};
  spawn.argv.insert(spawn.argv.end(), options.arguments.begin(), options.arguments.end());
  spawn.argv.insert(spawn.argv.end(), {"--ready-fd", fmt::format("{}", ready_write.get())});
  spawn.keep_fds = options.keep_fds;
  spawn.keep_fds.push_back(ready_write.get());
  if (options.lifeline_fd >= 0) {
    spawn.argv.insert(spawn.argv.end(), {"--lifeline-fd", fmt::format("{}", options.lifeline_fd)});
    spawn.keep_fds.push_back(options.lifeline_fd);
  }
  spawn.stdout_fd = log.get();
  spawn.stderr_fd = log.get();
  MESHRUN_ASSIGN_OR_RETURN(daemon.pid_, os::Spawn(spawn));
  daemon.pidfd_ = OpenPid(daemon.pid_);
  return daemon;
}

absl::StatusOr<std::string> DaemonProcess::WaitReady(std::chrono::nanoseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::string line;
  while (WaitReadable(ready_.get(), deadline - std::chrono::steady_clock::now())) {
    char buffer[512];
    const ssize_t n = ::read(ready_.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n > 0) {
      line.append(buffer, n);
      if (line.find('\n') == std::string::npos) continue;
    }
    const bool said = !line.empty();
    ready_.reset();
    if (said) return line.substr(0, line.find('\n'));
    // It closed the pipe and wrote nothing: it is ending.
    WaitEnded(std::chrono::seconds(2));
    // What it was told is wrong: to try again would not help.
    const bool is_usage = WIFEXITED(status_) && WEXITSTATUS(status_) == kExitUsage;
    return is_usage ? absl::InvalidArgumentError(DescribeEnd())
                    : absl::UnavailableError(DescribeEnd());
  }
  return absl::DeadlineExceededError(
      fmt::format("{} did not start in time{}", program_, LogEnd(log_path_)));
}

bool DaemonProcess::WaitEnded(std::chrono::nanoseconds timeout) {
  if (pid_ < 0 || status_ != -1) return true;
  if (pidfd_ && !WaitReadable(pidfd_.get(), timeout)) return false;
  return ::waitpid(pid_, &status_, pidfd_ ? 0 : WNOHANG) == pid_;
}

void DaemonProcess::Signal(int signal) {
  if (pid_ > 0 && status_ == -1) ::kill(pid_, signal);
}

std::string DaemonProcess::DescribeEnd() {
  WaitEnded(std::chrono::nanoseconds(0));
  std::string how = "is stuck";
  if (status_ != -1) {
    how = WIFSIGNALED(status_) ? fmt::format("was ended by {}", SignalName(WTERMSIG(status_)))
                               : fmt::format("ended with exit code {}", WEXITSTATUS(status_));
  }
  return fmt::format("{} {}{}", program_, how, LogEnd(log_path_));
}

}  // namespace meshrun::client
