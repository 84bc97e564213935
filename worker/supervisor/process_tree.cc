#include "worker/supervisor/process_tree.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "core/os/children.h"
#include "core/os/files.h"
#include "core/os/process_stat.h"

namespace meshrun::worker {
namespace {

// The most rounds of stopping before the kill, against a process that forks as fast as it is
// stopped.
constexpr int kFreezeRounds = 64;

class ProcFs : public ProcessTable {
 public:
  std::vector<pid_t> Pids() override { return os::AllPids(); }

  std::optional<Process> Read(pid_t pid) override {
    const auto stat = os::ReadProcessStat(pid);
    if (!stat || stat->IsZombie()) return std::nullopt;
    return Process{stat->pid, stat->parent, stat->start_ticks, stat->session};
  }

  std::string Environment(pid_t pid) override {
    auto environment = os::ReadFile("/proc/" + std::to_string(pid) + "/environ");
    return environment.ok() ? *std::move(environment) : std::string();
  }

  bool Signal(pid_t pid, int signal) override { return ::kill(pid, signal) == 0; }
};

// Stops what `find` finds until it finds nothing new, then kills it all: a stopped process cannot
// fork.
template <typename Find>
int FreezeAndKill(ProcessTable& table, const Find& find) {
  std::map<pid_t, uint64_t> stopped;
  const auto signal = [&table](pid_t pid, uint64_t start, int number) {
    const auto now = table.Read(pid);
    return now.has_value() && now->start == start && table.Signal(pid, number);
  };
  for (int round = 0; round < kFreezeRounds; ++round) {
    bool grew = false;
    for (const auto& [pid, start] : find()) {
      const auto known = stopped.find(pid);
      if (known != stopped.end() && known->second == start) continue;
      stopped[pid] = start;
      signal(pid, start, SIGSTOP);
      grew = true;
    }
    if (!grew) break;
  }
  int killed = 0;
  for (const auto& [pid, start] : stopped) killed += signal(pid, start, SIGKILL) ? 1 : 0;
  return killed;
}

std::vector<Process> ReadDescendants(pid_t root, ProcessTable& table) {
  std::multimap<pid_t, Process> children;
  for (const pid_t pid : table.Pids()) {
    if (const auto process = table.Read(pid); process && process->parent > 0)
      children.emplace(process->parent, *process);
  }
  std::vector<Process> found;
  std::vector<pid_t> open = {root};
  while (!open.empty()) {
    const pid_t parent = open.back();
    open.pop_back();
    for (auto [it, end] = children.equal_range(parent); it != end; ++it) {
      found.push_back(it->second);
      open.push_back(it->second.pid);
    }
    // Pids that were reused while /proc was read may form a cycle.
    children.erase(parent);
  }
  return found;
}

bool HasEntry(pid_t pid, std::string_view entry, ProcessTable& table) {
  const std::string needle = '\0' + std::string(entry) + '\0';
  return ('\0' + table.Environment(pid)).find(needle) != std::string::npos;
}

std::vector<std::pair<pid_t, uint64_t>> Names(const std::vector<Process>& processes) {
  std::vector<std::pair<pid_t, uint64_t>> names;
  names.reserve(processes.size());
  for (const Process& process : processes) names.emplace_back(process.pid, process.start);
  return names;
}

}  // namespace

ProcessTable& ProcessTable::Real() {
  static ProcFs proc;
  return proc;
}

std::vector<pid_t> Descendants(pid_t root, ProcessTable& table) {
  std::vector<pid_t> pids;
  for (const Process& process : ReadDescendants(root, table)) pids.push_back(process.pid);
  return pids;
}

int KillDescendants(pid_t root, ProcessTable& table) {
  return FreezeAndKill(table, [&] { return Names(ReadDescendants(root, table)); });
}

int KillSession(pid_t root, pid_t session, std::string_view entry, ProcessTable& table) {
  int found = 0;
  FreezeAndKill(table, [&] {
    std::vector<Process> own;
    for (const Process& process : ReadDescendants(root, table)) {
      if (process.session == session || HasEntry(process.pid, entry, table)) own.push_back(process);
    }
    found = static_cast<int>(own.size());
    return Names(own);
  });
  return found;
}

int KillAdopted(uint64_t since_ticks, ProcessTable& table) {
  const auto find = [since_ticks] {
    std::vector<os::AdoptedChild> found = os::AdoptedChildren();
    std::erase_if(found,
                  [since_ticks](const auto& child) { return child.start_ticks < since_ticks; });
    return found;
  };
  const std::vector<os::AdoptedChild> adopted = find();
  FreezeAndKill(table, [&] {
    std::vector<Process> found;
    for (const os::AdoptedChild& child : adopted) {
      const auto process = table.Read(child.pid);
      if (!process || process->start != child.start_ticks) continue;
      found.push_back(*process);
      const auto below = ReadDescendants(child.pid, table);
      found.insert(found.end(), below.begin(), below.end());
    }
    return Names(found);
  });
  const auto collect = [](const std::vector<os::AdoptedChild>& children) {
    return std::count_if(children.begin(), children.end(), [](const auto& child) {
      return ::waitpid(child.pid, nullptr, WNOHANG) == 0;
    });
  };
  // The children of those that have ended are this process's now.
  const auto left = collect(adopted);
  return static_cast<int>(left > 0 || adopted.empty() ? left : collect(find()));
}

int KillByEnvironment(std::string_view entry, ProcessTable& table) {
  return FreezeAndKill(table, [&] {
    std::vector<Process> found;
    for (const pid_t pid : table.Pids()) {
      if (pid == ::getpid()) continue;
      // Read before the environment: a pid that is reused in between has another start time.
      const auto process = table.Read(pid);
      if (process && HasEntry(pid, entry, table)) found.push_back(*process);
    }
    return Names(found);
  });
}

}  // namespace meshrun::worker
