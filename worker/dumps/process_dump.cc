#include "worker/dumps/process_dump.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <vector>

#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/os/process.h"

namespace meshrun::worker {
namespace {

constexpr size_t kMostThreads = 512;
constexpr size_t kMostStackBytes = size_t{4} << 20;

std::string ReadOr(const std::string& path, std::string_view otherwise) {
  const auto content = os::ReadFile(path);
  if (!content.ok() || content->empty()) return std::string(otherwise);
  std::string text = *content;
  while (!text.empty() && (text.back() == '\n' || text.back() == '\0')) text.pop_back();
  return text;
}

// The value of a line "Name:\tvalue" of /proc/PID/status.
std::string StatusField(const std::string& status, std::string_view name) {
  std::istringstream lines(status);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') continue;
    const size_t value = line.find_first_not_of(" \t", name.size() + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "?";
}

std::string DescribeThread(const std::string& task) {
  const std::string status = ReadOr(task + "/status", "");
  std::string text =
      fmt::format("  thread {} {}: {}, system call {}, waits in {}\n",
                  std::filesystem::path(task).filename().string(), ReadOr(task + "/comm", "?"),
                  StatusField(status, "State"), ReadOr(task + "/syscall", "not readable"),
                  ReadOr(task + "/wchan", "?"));
  std::istringstream kernel(ReadOr(task + "/stack", ""));
  for (std::string line; std::getline(kernel, line);) text += "    " + line + "\n";
  return text;
}

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
    if (out.size() < kMostStackBytes) out.append(buffer, static_cast<size_t>(n));
  }
}

std::string CallStacks(pid_t pid, std::chrono::milliseconds timeout) {
  const char* path = std::getenv("PATH");
  const std::string search = path == nullptr ? "/usr/bin:/bin" : path;
  const std::string number = std::to_string(pid);
  os::SpawnOptions spawn;
  if (const auto stack = os::FindCommand("eu-stack", "/", search); stack.ok()) {
    spawn.argv = {*stack, "--pid=" + number};
  } else if (const auto gdb = os::FindCommand("gdb", "/", search); gdb.ok()) {
    spawn.argv = {*gdb, "--batch", "--nx", "-p", number, "-ex", "thread apply all backtrace"};
  } else {
    return "call stacks: neither eu-stack (package elfutils) nor gdb is installed\n";
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "call stacks: no pipe\n";
  const os::UniqueFd read_end(ends[0]);
  os::UniqueFd write_end(ends[1]);
  spawn.stdout_fd = spawn.stderr_fd = write_end.get();
  const auto child = os::Spawn(spawn);
  if (!child.ok()) return fmt::format("call stacks: {}\n", std::string(child.status().message()));
  write_end.reset();
  bool in_time = true;
  std::string text =
      ReadUntil(read_end.get(), std::chrono::steady_clock::now() + timeout, &in_time);
  if (!in_time) {
    text += fmt::format("\n(no more within {} ms)\n", timeout.count());
    ::kill(-*child, SIGKILL);
  }
  while (::waitpid(*child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return fmt::format("call stacks ({}):\n{}\n",
                     std::filesystem::path(spawn.argv[0]).filename().string(), text);
}

}  // namespace

std::string DescribeProcess(pid_t pid, std::chrono::milliseconds timeout) {
  const std::string root = fmt::format("/proc/{}", pid);
  const std::string status = ReadOr(root + "/status", "");
  if (status.empty()) return fmt::format("process {} is gone\n", pid);
  std::string command = ReadOr(root + "/cmdline", "?");
  std::replace(command.begin(), command.end(), '\0', ' ');
  std::string text = fmt::format("process {}: {}\nstate {}, resident {}, threads {}\n", pid,
                                 command, StatusField(status, "State"),
                                 StatusField(status, "VmRSS"), StatusField(status, "Threads"));
  std::vector<std::string> tasks;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator(root + "/task", error)) {
    if (tasks.size() < kMostThreads) tasks.push_back(task.path().string());
  }
  for (const std::string& task : tasks) text += DescribeThread(task);
  return text + CallStacks(pid, timeout);
}

std::string DumpPath(const std::string& logs, int rank) {
  return fmt::format("{}/{}.dump.txt", logs, rank);
}

std::string FlightRecordPath(const std::string& logs, int rank) {
  return fmt::format("{}/{}.flight_record.json", logs, rank);
}

}  // namespace meshrun::worker
