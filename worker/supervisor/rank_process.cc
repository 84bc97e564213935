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
#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/status.h"

namespace meshrun::worker {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

// An earlier rank could have put a link or a pipe at this name: neither is followed or waited for.
absl::StatusOr<os::UniqueFd> OpenOutput(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  os::UniqueFd fd(::open(path.c_str(), kFlags, 0600));
  if (!fd) return os::ErrnoStatus(errno, path);
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return os::ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(fmt::format("{} is not a regular file", path));
  }
  // What the rank writes there must not end with EAGAIN, whatever the file system.
  ::fcntl(fd.get(), F_SETFL, O_APPEND);
  return fd;
}

[[noreturn]] void Refuse(const std::string& what, int error) {
  const std::string line =
      fmt::format("meshrun: cannot start {}: {}\n", what, std::strerror(error));
  (void)!::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(error == ENOENT || error == ENOTDIR ? kExitNotFound : kExitNotExecutable);
}

}  // namespace

absl::StatusOr<pid_t> StartRank(
    const v1::RankLaunch& launch,
    const google::protobuf::Map<std::string, std::string>& environment) {
  MESHRUN_ASSIGN_OR_RETURN(const os::UniqueFd out, OpenOutput(launch.stdout_path()));
  MESHRUN_ASSIGN_OR_RETURN(const os::UniqueFd err, OpenOutput(launch.stderr_path()));

  std::map<std::string, std::string> variables(launch.env().begin(), launch.env().end());
  for (const auto& [name, value] : environment) variables[name] = value;
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  std::vector<std::string> arguments(launch.argv().begin(), launch.argv().end());
  if (arguments.empty()) return absl::InvalidArgumentError("the command is empty");
  std::vector<char*> envp = Pointers(entries);
  std::vector<char*> argv = Pointers(arguments);

  const pid_t supervisor = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return os::ErrnoStatus(errno, "fork");
  if (pid > 0) return pid;

  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The supervisor may have died before PDEATHSIG was set.
  if (::getppid() != supervisor) ::_exit(kExitNotExecutable);
  for (const int signal : {SIGPIPE, SIGTERM, SIGINT}) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::dup2(out.get(), STDOUT_FILENO);
  ::dup2(err.get(), STDERR_FILENO);
  if (!launch.working_dir().empty() && ::chdir(launch.working_dir().c_str()) != 0) {
    Refuse("in " + launch.working_dir(), errno);
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
