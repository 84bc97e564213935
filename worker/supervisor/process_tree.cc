#include "worker/supervisor/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "core/os/fd.h"
#include "core/os/files.h"

namespace meshrun::worker {
namespace {

// A process that forks as fast as it is stopped gets no more rounds than this before the kill.
constexpr int kFreezeRounds = 64;

std::vector<pid_t> AllProcesses() {
  std::vector<pid_t> pids;
  DIR* const proc = ::opendir("/proc");
  if (proc == nullptr) return pids;
  while (const dirent* entry = ::readdir(proc)) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    pids.push_back(static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10)));
  }
  ::closedir(proc);
  return pids;
}

// Parent of `pid`, -1 when it is gone or a zombie.
pid_t ParentOf(pid_t pid) {
  char path[32];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  const os::UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  if (!fd) return -1;
  char buffer[512];
  const ssize_t n = ::read(fd.get(), buffer, sizeof(buffer) - 1);
  if (n <= 0) return -1;
  buffer[n] = '\0';
  // "pid (name) state ppid ...": the name may hold anything, also ") ".
  const char* const end_of_name = std::strrchr(buffer, ')');
  if (end_of_name == nullptr) return -1;
  char state = 0;
  int parent = -1;
  if (std::sscanf(end_of_name + 1, " %c %d", &state, &parent) != 2) return -1;
  return state == 'Z' || state == 'X' ? -1 : parent;
}

// Stops what `find` finds until it finds nothing new, then kills it all: who is stopped forks
// nobody.
template <typename Find>
int FreezeAndKill(const Find& find) {
  std::set<pid_t> stopped;
  for (int round = 0; round < kFreezeRounds; ++round) {
    bool grew = false;
    for (const pid_t pid : find()) {
      if (!stopped.insert(pid).second) continue;
      ::kill(pid, SIGSTOP);
      grew = true;
    }
    if (!grew) break;
  }
  int killed = 0;
  for (const pid_t pid : stopped) killed += ::kill(pid, SIGKILL) == 0 ? 1 : 0;
  return killed;
}

}  // namespace

std::vector<pid_t> Descendants(pid_t root) {
  std::multimap<pid_t, pid_t> children;
  for (const pid_t pid : AllProcesses()) {
    if (const pid_t parent = ParentOf(pid); parent > 0) children.emplace(parent, pid);
  }
  std::vector<pid_t> found;
  std::vector<pid_t> open = {root};
  while (!open.empty()) {
    const pid_t parent = open.back();
    open.pop_back();
    for (auto [it, end] = children.equal_range(parent); it != end; ++it) {
      found.push_back(it->second);
      open.push_back(it->second);
    }
  }
  return found;
}

int KillDescendants(pid_t root) {
  return FreezeAndKill([root] { return Descendants(root); });
}

int KillByEnvironment(std::string_view entry) {
  const std::string needle = '\0' + std::string(entry) + '\0';
  return FreezeAndKill([&needle] {
    std::vector<pid_t> found;
    for (const pid_t pid : AllProcesses()) {
      if (pid == ::getpid()) continue;
      const auto environment = os::ReadFile("/proc/" + std::to_string(pid) + "/environ");
      if (environment.ok() && ('\0' + *environment).find(needle) != std::string::npos) {
        found.push_back(pid);
      }
    }
    return found;
  });
}

}  // namespace meshrun::worker
