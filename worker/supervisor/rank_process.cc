#include "worker/supervisor/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <vector>

#include "core/exit_codes.h"
#include "core/os/core_set.h"
#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/status.h"
#include "core/text.h"
#include "worker/cgroups/cgroups.h"
#include "worker/pictures/picture_directory.h"
#include "worker/supervisor/rank_user.h"

namespace meshrun::worker {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

[[noreturn]] void Refuse(const std::string& what, int error) {
  const std::string line =
      fmt::format("meshrun: cannot start {}: {}\n", what, std::strerror(error));
  (void)!::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(error == ENOENT || error == ENOTDIR ? kExitNotFound : kExitNotExecutable);
}

}  // namespace

// An earlier rank could have put a link or a pipe at this name: neither is followed or waited for.
absl::StatusOr<os::UniqueFd> OpenOutput(const std::string& path, const v1::RankUser* user) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  os::UniqueFd fd(::open(path.c_str(), kFlags, 0600));
  if (!fd) return os::ErrnoStatus(errno, path);
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return os::ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(fmt::format("{} is not a regular file", path));
  }
  if (user != nullptr && ::fchown(fd.get(), user->uid(), user->gid()) != 0) {
    return os::ErrnoStatus(errno, path);
  }
  // What is written there must not end with EAGAIN, whatever the file system.
  ::fcntl(fd.get(), F_SETFL, 0);
  return fd;
}

absl::StatusOr<pid_t> StartRank(const v1::RankLaunch& launch, const EnvEntries& environment,
                                const RankStreams& streams, const v1::RankUser* user,
                                const v1::ControlGroup& cgroup) {
  if (!launch.picture_directory().empty()) {
    MESHRUN_RETURN_IF_ERROR(PictureDirectory::Make(launch.picture_directory(), user));
  }
  // Made here: its directory is root's.
  if (user != nullptr) {
    MESHRUN_RETURN_IF_ERROR(OpenOutput(launch.error_file(), user).status());
    if (!launch.stack_file().empty()) {
      MESHRUN_RETURN_IF_ERROR(OpenOutput(launch.stack_file(), user).status());
    }
    // Opening /dev/stdout or /dev/stderr anew asks for the right to the pipe behind it.
    for (const os::UniqueFd* stream : {&streams.out, &streams.err}) {
      if (::fchown(stream->get(), user->uid(), user->gid()) != 0) {
        return os::ErrnoStatus(errno, "a pipe of the rank's output");
      }
    }
  }

  std::map<std::string, std::string> variables = EnvMap(launch.env());
  if (user != nullptr) {
    for (const char* name : {"USER", "LOGNAME"}) variables.emplace(name, user->name());
    variables.emplace("HOME", user->home());
    variables.emplace("SHELL", user->shell());
  }
  const std::string& working_dir =
      launch.working_dir().empty() && user != nullptr ? user->home() : launch.working_dir();
  for (const v1::EnvEntry& entry : environment) variables[entry.name()] = entry.value();
  std::vector<std::string> entries;
  entries.reserve(variables.size());
  for (const auto& [name, value] : variables) entries.push_back(fmt::format("{}={}", name, value));
  std::vector<std::string> arguments(launch.argv().begin(), launch.argv().end());
  if (arguments.empty()) return absl::InvalidArgumentError("the command is empty");
  std::vector<char*> envp = Pointers(entries);
  std::vector<char*> argv = Pointers(arguments);

  const pid_t supervisor = ::getpid();
  // 1: the daemon has gone, and this process is another's child.
  const pid_t daemon = ::getppid();
  const pid_t pid = ::fork();
  if (pid < 0) return os::ErrnoStatus(errno, "fork");
  if (pid > 0) return pid;

  ::setsid();
  // First, so that what cannot be had is said in the rank's own output.
  if (streams.in) ::dup2(streams.in.get(), STDIN_FILENO);
  ::dup2(streams.out.get(), STDOUT_FILENO);
  ::dup2(streams.err.get(), STDERR_FILENO);
  if (const absl::Status entered = EnterCgroup(cgroup); !entered.ok()) {
    Refuse("in its cgroup " + std::string(entered.message()), errno);
  }
  if (const os::CoreSet cores(launch.cores().begin(), launch.cores().end());
      !cores.empty() && !os::RunOn(cores)) {
    Refuse("on cores " + FormatRanks(cores), errno);
  }
  if (user != nullptr && !Become(*user).ok()) Refuse("as " + user->name(), errno);
  // After the change of user, which clears it.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // If kernel.yama.ptrace_scope is 1, only ancestors may read a process's stack: the daemon's
  // debuggers are none. Without that module of the kernel the call fails; nothing is needed then.
  if (daemon > 1) ::prctl(PR_SET_PTRACER, daemon);
  // The supervisor may have died before PDEATHSIG was set.
  if (::getppid() != supervisor) ::_exit(kExitNotExecutable);
  for (const int signal : {SIGPIPE, SIGTERM, SIGINT}) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (!working_dir.empty() && ::chdir(working_dir.c_str()) != 0) {
    Refuse("in " + working_dir, errno);
  }
  ::execve(argv[0], argv.data(), envp.data());
  if (errno == ENOEXEC) {
    // A script without "#!": /bin/sh runs it, as with execvp.
    std::vector<char*> shell = {const_cast<char*>("/bin/sh")};
    shell.insert(shell.end(), argv.begin(), argv.end());
    ::execve(shell[0], shell.data(), envp.data());
  }
  Refuse(arguments[0], errno);
}

}  // namespace meshrun::worker
