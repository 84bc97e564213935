#include "worker/dumps/python_frames.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/os/process.h"
#include "core/os/process_stat.h"
#include "worker/dumps/frames.h"
#include "worker/dumps/proc_files.h"
#include "worker/dumps/tool.h"
#include "worker/dumps/traced_process.h"

namespace meshrun::worker {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using Deadline = std::chrono::steady_clock::time_point;

// A rank whose Python runs answers within milliseconds.
constexpr milliseconds kHandlerTime(2000);
// faulthandler writes frame by frame: silence for so long is the end.
constexpr milliseconds kQuiet(60);
constexpr milliseconds kLook(20);
constexpr size_t kMostFrameBytes = size_t{1} << 20;

milliseconds Left(Deadline deadline) {
  return std::max(milliseconds(0),
                  std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now()));
}

std::string ValueOf(const std::string& environment, std::string_view name) {
  std::istringstream entries(environment);
  for (std::string entry; std::getline(entries, entry, '\0');) {
    if (entry.starts_with(name) && entry.size() > name.size() && entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
  }
  return "";
}

// A program of the rank's user may not run as another one, so its directories count only where the
// worker is the same user.
std::string FindPySpy(pid_t pid) {
  const char* const own = std::getenv("PATH");
  std::string path = own == nullptr ? "/usr/bin:/bin" : own;
  struct stat info = {};
  const std::string root = fmt::format("/proc/{}", pid);
  if (::stat(root.c_str(), &info) == 0 && info.st_uid == ::geteuid()) {
    const std::string environment = ReadProcFile(root + "/environ");
    std::string command = ReadProcFile(root + "/cmdline");
    command.resize(std::min(command.find('\0'), command.size()));
    const std::string virtual_env = ValueOf(environment, "VIRTUAL_ENV");
    if (!virtual_env.empty()) path += fmt::format(":{}/bin", virtual_env);
    if (command.starts_with('/')) path += ":" + fs::path(command).parent_path().string();
    path += ":" + ValueOf(environment, "PATH");
  }
  return os::FindCommand("py-spy", "/", path).value_or("");
}

bool HasHandler(pid_t pid) {
  const std::string caught =
      StatusField(ReadProcFile(fmt::format("/proc/{}/status", pid)), "SigCgt");
  return ((std::strtoull(caught.c_str(), nullptr, 16) >> (kStackSignal - 1)) & 1) != 0;
}

// Empty where the rank has not answered.
std::string AskHandler(pid_t pid, const std::string& file, milliseconds timeout) {
  // The rank appends to it, so that it begins at 0 again.
  {
    const os::UniqueFd fd(::open(file.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat info = {};
    if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) ||
        ::ftruncate(fd.get(), 0) != 0) {
      return "";
    }
  }
  if (::kill(pid, kStackSignal) != 0) return "";
  const Deadline deadline = std::chrono::steady_clock::now() + std::min(timeout, kHandlerTime);
  std::string text;
  auto grown = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kLook);
    auto now = os::ReadRegularFile(file, kMostFrameBytes);
    if (!now.ok()) return text;
    if (*now != text) {
      text = *std::move(now);
      grown = std::chrono::steady_clock::now();
    } else if (!text.empty() && std::chrono::steady_clock::now() - grown >= kQuiet) {
      break;
    }
  }
  return text;
}

// Why Python code of the process does not answer a signal.
std::string WhySilent(pid_t pid) {
  const auto stat = os::ReadProcessStat(pid);
  return stat && stat->state == 'T'
             ? "the process is stopped (as by SIGSTOP); SIGCONT lets it go on"
             : "its main thread does not come back to Python";
}

}  // namespace

bool RunsPython(pid_t pid) {
  std::error_code error;
  const fs::path program = fs::read_symlink(fmt::format("/proc/{}/exe", pid), error);
  if (program.filename().string().starts_with("python")) return true;
  return ReadProcFile(fmt::format("/proc/{}/maps", pid)).find("/libpython") != std::string::npos;
}

ProcessStack FramesOfPython(pid_t pid, const std::string& stack_file, milliseconds timeout) {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  ProcessStack out;
  std::string why = DescribeTracer(pid);
  if (!why.empty()) {
    // The handler may answer all the same.
  } else if (const std::string py_spy = FindPySpy(pid); !py_spy.empty()) {
    const ToolResult result = RunTool(
        {py_spy, "dump", "--full-filenames", "--pid", std::to_string(pid)}, pid, Left(deadline));
    const std::vector<Frame> frames = FramesOfPySpy(result.output, pid);
    if (!frames.empty()) {
      out.text = fmt::format("Python frames (py-spy):\n{}\n", result.output);
      out.place = PlaceOf(frames);
      return out;
    }
    why = fmt::format("py-spy: {}", result.output);
    if (const std::string advice = TracingAdvice(result.output, ReadProcFile(kPtraceScope));
        !advice.empty()) {
      why = "py-spy: " + advice;
    }
  } else {
    why =
        "py-spy is neither in the worker's PATH nor beside the rank's Python ('pip install "
        "py-spy')";
  }
  while (why.ends_with('\n')) why.pop_back();
  const bool has_handler = !stack_file.empty() && HasHandler(pid);
  const std::string text = has_handler ? AskHandler(pid, stack_file, Left(deadline)) : "";
  out.place = PlaceOf(FramesOfFaulthandler(text));
  if (!text.empty()) {
    out.text = fmt::format("Python frames (faulthandler):\n{}\n", text);
    return out;
  }
  out.problem =
      has_handler
          ? fmt::format("{}, and the script's handler of signal {} did not answer: {}", why,
                        kStackSignal, WhySilent(pid))
          : fmt::format("{}; a script that has imported meshrun tells them without it", why);
  out.text = fmt::format("Python frames: none: {}\n", out.problem);
  return out;
}

}  // namespace meshrun::worker
