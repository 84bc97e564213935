#include "core/os/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/os/children.h"
#include "core/os/files.h"

extern char** environ;

namespace meshrun::os {
namespace {

bool IsExecutableFile(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

std::vector<std::string> SplitPath(std::string_view variable) {
  std::vector<std::string> out;
  while (true) {
    const size_t colon = variable.find(':');
    const std::string_view part = variable.substr(0, colon);
    out.emplace_back(part.empty() ? "." : part);
    if (colon == std::string_view::npos) return out;
    variable.remove_prefix(colon + 1);
  }
}

}  // namespace

std::string SelfPath() {
  char buffer[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", buffer, sizeof(buffer));
  return n > 0 ? std::string(buffer, n) : std::string();
}

absl::StatusOr<std::string> FindOwnProgram(std::string_view name) {
  const std::filesystem::path here = std::filesystem::path(SelfPath()).parent_path();
  // "meshrun-worker" is built in worker/, beside client/ where the command is.
  const std::string room(name.substr(name.rfind('-') + 1));
  std::vector<std::string> tried = {here / name, here.parent_path() / room / name,
                                    here.parent_path() / "libexec" / "meshrun" / name};
  if (const char* path = std::getenv("PATH")) {
    for (const std::string& directory : SplitPath(path))
      tried.push_back(directory + "/" + std::string(name));
  }
  for (const std::string& candidate : tried) {
    if (IsExecutableFile(candidate)) return candidate;
  }
  return absl::NotFoundError(
      fmt::format("{} is not installed: looked for it at {}, {}, {} and in $PATH", name, tried[0],
                  tried[1], tried[2]));
}

absl::StatusOr<std::string> FindCommand(std::string_view command, const std::string& working_dir,
                                        std::string_view path_variable) {
  if (command.empty()) return absl::InvalidArgumentError("the command is empty");
  if (command.find('/') == std::string_view::npos) {
    for (const std::string& directory : SplitPath(path_variable)) {
      std::string candidate = directory + "/" + std::string(command);
      if (IsExecutableFile(candidate)) return candidate;
    }
    const auto here = std::filesystem::path(working_dir) / command;
    std::error_code error;
    if (std::filesystem::is_directory(here, error)) {
      return absl::InvalidArgumentError(
          fmt::format("{} is a directory, not a program", here.string()));
    }
    if (std::filesystem::exists(here, error)) {
      return absl::NotFoundError(
          fmt::format("{}: no such program in $PATH; for the file in {} write ./{}", command,
                      working_dir, command));
    }
    return absl::NotFoundError(fmt::format("{}: no such program in $PATH", command));
  }
  const std::string path =
      command[0] == '/' ? std::string(command) : working_dir + "/" + std::string(command);
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) {
    return errno == EACCES ? absl::PermissionDeniedError(fmt::format("{}: permission denied", path))
                           : absl::NotFoundError(fmt::format("{}: no such file", path));
  }
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(fmt::format("{} is a directory, not a program", path));
  }
  if (::access(path.c_str(), X_OK) != 0) {
    return absl::PermissionDeniedError(fmt::format(
        "{} is not executable: run chmod +x {}, or name its interpreter before it", path, path));
  }
  return path;
}

void RaiseDescriptorLimit() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = std::max(files.rlim_cur, std::min<rlim_t>(files.rlim_max, 1 << 20));
  ::setrlimit(RLIMIT_NOFILE, &files);
}

absl::StatusOr<pid_t> Spawn(const SpawnOptions& options) {
  std::vector<char*> argv;
  argv.reserve(options.argv.size() + 1);
  for (const std::string& a : options.argv) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);

  std::map<std::string, std::string> merged;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry(*e);
    const size_t equals = entry.find('=');
    if (equals != std::string_view::npos)
      merged[std::string(entry.substr(0, equals))] = entry.substr(equals + 1);
  }
  for (const auto& [name, value] : options.env) merged[name] = value;
  std::vector<std::string> entries;
  entries.reserve(merged.size());
  for (const auto& [name, value] : merged) entries.push_back(fmt::format("{}={}", name, value));
  std::vector<char*> envp;
  envp.reserve(entries.size() + 1);
  for (std::string& e : entries) envp.push_back(e.data());
  envp.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  if (options.stdout_fd >= 0) posix_spawn_file_actions_adddup2(&actions, options.stdout_fd, 1);
  if (options.stderr_fd >= 0) posix_spawn_file_actions_adddup2(&actions, options.stderr_fd, 2);
  // dup2 onto itself clears close-on-exec in the child.
  for (const int fd : options.keep_fds) posix_spawn_file_actions_adddup2(&actions, fd, fd);

  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  short flags = POSIX_SPAWN_SETSIGMASK;
  if (options.new_session) flags |= POSIX_SPAWN_SETSID;
  posix_spawnattr_setflags(&attributes, flags);

  pid_t pid = -1;
  // Not under a lock: until the program is there, its file system may hold this thread.
  SpawnUnderWay under_way;
  const int error =
      ::posix_spawn(&pid, options.argv[0].c_str(), &actions, &attributes, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return ErrnoStatus(error, options.argv[0]);
  under_way.Started(pid, options.new_session && options.owns_session);
  return pid;
}

Lifeline::Lifeline(UniqueFd read_end, std::function<void()> on_end)
    : read_end_(std::move(read_end)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  thread_ = std::thread([this, on_end = std::move(on_end)] {
    pollfd fds[2] = {{read_end_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    while (true) {
      if (::poll(fds, 2, -1) < 0 && errno != EINTR) return;
      if (fds[1].revents != 0) return;
      if (fds[0].revents == 0) continue;
      char byte;
      const ssize_t n = ::read(read_end_.get(), &byte, 1);
      if (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN))) continue;
      on_end();
      return;
    }
  });
}

Lifeline::~Lifeline() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

void OpenMissingStandardStreams(MissingOutput output, char** argv) {
  bool taken = false;
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    // Nothing that is inherited is closed by exec: such a descriptor was opened by an initializer
    // here.
    const int flags = ::fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) continue;
    taken = taken || flags >= 0;
    const bool read_only = fd == STDIN_FILENO || output == MissingOutput::kRefuseWrites;
    const int null = ::open("/dev/null", read_only ? O_RDONLY : O_RDWR);
    // There is nowhere to say it.
    if (null < 0) ::_exit(EXIT_FAILURE);
    if (null == fd) continue;
    ::dup2(null, fd);
    ::close(null);
  }
  if (taken && argv != nullptr) ::execv(SelfPath().c_str(), argv);
}

bool IsIgnored(int signal) {
  struct sigaction action = {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

sigset_t TerminationSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    if (!IsIgnored(signal)) sigaddset(&set, signal);
  }
  return set;
}

void BlockTerminationSignals(bool user_signals) {
  sigset_t set = TerminationSignals();
  if (user_signals) {
    for (const int signal : {SIGUSR1, SIGUSR2}) sigaddset(&set, signal);
  }
  BlockSignals(set);
}

void BlockSignals(const sigset_t& signals) {
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A peer that closes its socket is an error of that call, not the end of the process.
  ::signal(SIGPIPE, SIG_IGN);
}

int WaitForTerminationSignal() {
  const sigset_t set = TerminationSignals();
  int signal = 0;
  while (sigwait(&set, &signal) != 0) {
  }
  return signal;
}

absl::StatusOr<int> ParseSignal(std::string_view text) {
  std::string name(text.starts_with("SIG") ? text.substr(3) : text);
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    const char* const known = ::sigabbrev_np(signal);
    if (name == std::to_string(signal) || (known != nullptr && name == known)) return signal;
  }
  return absl::InvalidArgumentError(
      fmt::format("'{}' is not a signal: write for example USR1, SIGUSR1 or 10", text));
}

}  // namespace meshrun::os
