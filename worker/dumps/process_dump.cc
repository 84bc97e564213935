#include "worker/dumps/process_dump.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <string_view>
#include <vector>

#include "core/os/process.h"
#include "worker/dumps/frames.h"
#include "worker/dumps/proc_files.h"
#include "worker/dumps/python_frames.h"
#include "worker/dumps/tool.h"
#include "worker/dumps/traced_process.h"

namespace meshrun::worker {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostProcesses = 64;

std::string ReadOr(const std::string& path, std::string_view otherwise) {
  std::string text = ReadProcFile(path);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\0')) text.pop_back();
  return text.empty() ? std::string(otherwise) : text;
}

std::string DescribeThread(const std::string& task) {
  const std::string status = ReadOr(task + "/status", "");
  std::string text = fmt::format(
      "  thread {} {}: {}, system call {}, waits in {}\n", fs::path(task).filename().string(),
      ReadOr(task + "/comm", "?"), StatusField(status, "State"),
      ReadOr(task + "/syscall", "not readable"), ReadOr(task + "/wchan", "?"));
  std::istringstream kernel(ReadOr(task + "/stack", ""));
  for (std::string line; std::getline(kernel, line);) text += "    " + line + "\n";
  return text;
}

std::vector<pid_t> Children(pid_t pid) {
  std::vector<pid_t> children;
  for (const std::string& task : ThreadDirectories(pid)) {
    std::istringstream text(ReadProcFile(task + "/children"));
    for (pid_t child; text >> child;) children.push_back(child);
  }
  return children;
}

// Shells, and other programs that start one and wait for it. Those that exec it (numactl, taskset)
// are gone by then.
constexpr std::string_view kLaunchers[] = {
    "sh",         "bash",    "dash",      "ash",         "ksh",     "mksh",      "zsh",
    "fish",       "tcsh",    "busybox",   "env",         "timeout", "time",      "tini",
    "sudo",       "su",      "runuser",   "flock",       "script",  "dumb-init", "catatonit",
    "strace",     "ltrace",  "perf",      "nsys",        "ncu",     "uv",        "pixi",
    "micromamba", "starter", "apptainer", "singularity", "bwrap",   "unshare",   "starter-suid"};

bool IsLauncher(pid_t pid) {
  const std::string root = fmt::format("/proc/{}", pid);
  std::error_code error;
  std::string name = fs::read_symlink(root + "/exe", error).filename().string();
  // The program of another user's process cannot be read.
  if (name.empty()) name = ReadOr(root + "/comm", "");
  return std::find(std::begin(kLaunchers), std::end(kLaunchers), name) != std::end(kLaunchers);
}

// gdb takes seconds to read the symbols of one, LibTorch's.
constexpr uint64_t kLargeLibrary = uint64_t{16} << 20;

// Reads the symbols of large libraries before it stops the process, and does not compute C++ names
// of all of them: so a rank stands still for a second instead of 15.
std::vector<std::string> GdbCommand(const std::string& gdb, pid_t pid) {
  std::vector<std::string> argv = {gdb, "--batch", "--nx"};
  const auto first = [&argv](std::string command) {
    argv.insert(argv.end(), {"-iex", std::move(command)});
  };
  first("set auto-load no");
  first("set demangle-style none");
  first("set confirm off");
  const std::string maps = ReadProcFile(fmt::format("/proc/{}/maps", pid));
  for (const MappedLibrary& library : LargeLibraries(maps, kLargeLibrary)) {
    // Words of gdb's commands are as those of a shell.
    if (library.path.find_first_of(" \t\"'\\") != std::string::npos) continue;
    first(fmt::format("add-symbol-file {} -o {:#x}", library.path, library.address));
  }
  argv.insert(argv.end(), {"-p", std::to_string(pid), "-ex", "thread apply all backtrace"});
  return argv;
}

}  // namespace

pid_t WorkingProcess(pid_t rank) {
  std::deque<pid_t> waiting = {rank};
  for (size_t seen = 0; !waiting.empty() && seen < kMostProcesses; ++seen) {
    const pid_t pid = waiting.front();
    waiting.pop_front();
    if (RunsPython(pid)) return pid;
    // What a program of the rank's own has started is its helper.
    if (!IsLauncher(pid)) continue;
    for (const pid_t child : Children(pid)) waiting.push_back(child);
  }
  pid_t pid = rank;
  for (size_t depth = 0; depth < kMostProcesses && IsLauncher(pid); ++depth) {
    const std::vector<pid_t> children = Children(pid);
    if (children.empty()) break;
    pid = children.front();
  }
  return pid;
}

ProcessStack NativeStack(pid_t pid, std::chrono::milliseconds timeout) {
  const char* const path = std::getenv("PATH");
  const std::string search = path == nullptr ? "/usr/bin:/bin" : path;
  const std::string number = std::to_string(pid);
  ProcessStack out;
  out.problem = DescribeTracer(pid);
  if (!out.problem.empty()) {
    out.text = fmt::format("call stacks: none: {}\n", out.problem);
    return out;
  }
  std::vector<Frame> frames;
  ToolResult result;
  std::string tool;
  if (const auto stack = os::FindCommand("eu-stack", "/", search); stack.ok()) {
    tool = "eu-stack";
    result = RunTool({*stack, "--source", "--inlines", "--pid=" + number}, pid, timeout);
    frames = FramesOfEuStack(result.output, pid);
  } else if (const auto gdb = os::FindCommand("gdb", "/", search); gdb.ok()) {
    tool = "gdb";
    result = RunTool(GdbCommand(*gdb, pid), pid, timeout);
    result.output = TidyGdb(result.output);
    frames = FramesOfGdb(result.output, pid);
  } else {
    out.problem = "neither eu-stack (package elfutils) nor gdb is installed on this host";
    out.text = fmt::format("call stacks: {}\n", out.problem);
    return out;
  }
  out.place = PlaceOf(frames);
  out.text = fmt::format("call stacks ({}):\n{}\n", tool, result.output);
  if (!frames.empty()) return out;
  out.problem = TracingAdvice(result.output, ReadProcFile(kPtraceScope));
  if (!out.problem.empty()) out.text += out.problem + "\n";
  if (out.problem.empty()) {
    out.problem = fmt::format("{} found no frames{}{}", tool, result.in_time ? "" : " in time",
                              result.in_time || tool != "gdb"
                                  ? ""
                                  : ": eu-stack (package elfutils) on this host is faster");
  }
  return out;
}

std::string TextBesidesProblem(const ProcessStack& stack) {
  const std::string end = stack.problem + "\n";
  const size_t at = stack.problem.empty() ? std::string::npos : stack.text.find(end);
  if (at == std::string::npos) return stack.text;
  const size_t line = stack.text.rfind('\n', at) + 1;
  return stack.text.substr(0, line) + stack.text.substr(at + end.size());
}

ProcessStack StackOf(pid_t pid, const std::string& python_file, std::chrono::milliseconds timeout) {
  return RunsPython(pid) ? FramesOfPython(pid, python_file, timeout) : NativeStack(pid, timeout);
}

std::string DescribeThreads(pid_t pid) {
  const std::string root = fmt::format("/proc/{}", pid);
  const std::string status = ReadOr(root + "/status", "");
  if (status.empty()) return fmt::format("process {} is gone\n", pid);
  std::string command = ReadOr(root + "/cmdline", "?");
  std::replace(command.begin(), command.end(), '\0', ' ');
  std::string text = fmt::format("process {}: {}\nstate {}, resident {}, threads {}\n", pid,
                                 command, StatusField(status, "State"),
                                 StatusField(status, "VmRSS"), StatusField(status, "Threads"));
  for (const std::string& task : ThreadDirectories(pid)) text += DescribeThread(task);
  return text;
}

}  // namespace meshrun::worker
