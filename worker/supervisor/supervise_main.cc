#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>

#include "core/exit_codes.h"
#include "core/os/files.h"
#include "core/parse_integer.h"
#include "worker/supervisor/supervisor.h"

namespace meshrun::worker {
namespace {

int Fail(const std::string& text) {
  const std::string line = fmt::format("meshrun-worker supervise: {}\n", text);
  (void)!::write(STDERR_FILENO, line.data(), line.size());
  return kExitUsage;
}

// Ranks must not inherit the daemon's open files.
void CloseOnExecAbove(unsigned first) {
#ifdef SYS_close_range
  constexpr unsigned kCloseRangeCloexec = 1u << 2;
  ::syscall(SYS_close_range, first, ~0u, kCloseRangeCloexec);
#else
  (void)first;
#endif
}

}  // namespace

// The few flags come from the daemon: a parser would cost as much time as the rest of the start.
int SuperviseMain(int argc, char** argv) {
  SupervisorOptions options;
  std::string launch_file;
  for (int i = 2; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (flag == "--end-with-daemon") {
      options.end_with_daemon = true;
    } else if (value == nullptr) {
      return Fail(fmt::format("{} is not a flag, or its value is missing", flag));
    } else if (flag == "--launch") {
      launch_file = value, ++i;
    } else if (flag == "--listen-fd" || flag == "--lifeline-fd" || flag == "--stdin-fd" ||
               flag == "--stdin-rank") {
      const auto number = ParseInteger<int>(value);
      if (!number || *number < 0)
        return Fail(fmt::format("{} {}: not a whole number from 0 up", flag, value));
      if (flag == "--listen-fd") options.listener.reset(*number);
      if (flag == "--lifeline-fd") options.lifeline.reset(*number);
      if (flag == "--stdin-fd") options.stdin_fd.reset(*number);
      if (flag == "--stdin-rank") options.stdin_rank = *number;
      ++i;
    } else if (flag == "--terminal") {
      options.terminal = ParseTerminalSize(value);
      if (!options.terminal) {
        return Fail(fmt::format("--terminal {}: write COLUMNSxROWS, for example 80x24", value));
      }
      ++i;
    } else if (flag == "--stdin-directory") {
      options.stdin_directory = value, ++i;
    } else {
      return Fail(fmt::format("{} is not a flag", flag));
    }
  }
  if (launch_file.empty())
    return Fail("--launch FILE is missing: the worker daemon starts supervisors");
  CloseOnExecAbove(3);
  const auto content = os::ReadFile(launch_file);
  if (!content.ok()) return Fail(std::string(content.status().message()));
  if (!options.launch.ParseFromString(*content)) return Fail(launch_file + " is not a launch file");
  options.directory = std::filesystem::path(launch_file).parent_path().string();
  auto supervisor = Supervisor::Create(std::move(options));
  if (!supervisor.ok()) return Fail(std::string(supervisor.status().message()));
  (*supervisor)->Run();
  return kExitOk;
}

}  // namespace meshrun::worker
