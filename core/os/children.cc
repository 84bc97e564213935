#include "core/os/children.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>

#include "core/mutex.h"
#include "core/os/boot_time.h"
#include "core/os/process_stat.h"

namespace meshrun::os {
namespace {

// What Spawn has started and nobody has found gone.
struct Spawned {
  Mutex mu;
  // Start times by number; absent: it could not be read, and whoever has the number is Spawn's.
  std::map<pid_t, std::optional<uint64_t>> children MESHRUN_GUARDED_BY(mu);
  std::set<pid_t> sessions MESHRUN_GUARDED_BY(mu);
  std::multiset<uint64_t> under_way MESHRUN_GUARDED_BY(mu);
};

Spawned& TheSpawned() {
  static Spawned spawned;
  return spawned;
}

uint64_t TicksNow() {
  const auto now = BootTimeNow();
  const auto per_second = static_cast<uint64_t>(::sysconf(_SC_CLK_TCK));
  return static_cast<uint64_t>(std::chrono::duration<double>(now).count() *
                               static_cast<double>(per_second));
}

// It is, or may be, a child whose end a caller of Spawn waits for.
bool IsSpawned(const Spawned& spawned, const ProcessStat& stat) MESHRUN_REQUIRES(spawned.mu) {
  // A tick is 10 ms: the child may have been given the one before.
  if (!spawned.under_way.empty() && stat.start_ticks + 1 >= *spawned.under_way.begin()) return true;
  const auto known = spawned.children.find(stat.pid);
  return known != spawned.children.end() &&
         known->second.value_or(stat.start_ticks) == stat.start_ticks;
}

// Numbers of those that are gone may be others' by now.
void ForgetGone(Spawned& spawned, const std::vector<pid_t>& present,
                const std::set<pid_t>& live_sessions) MESHRUN_REQUIRES(spawned.mu) {
  const std::set<pid_t> all(present.begin(), present.end());
  std::erase_if(spawned.children, [&](const auto& child) { return !all.contains(child.first); });
  std::erase_if(spawned.sessions, [&](pid_t session) {
    return !live_sessions.contains(session) && !all.contains(session);
  });
}

}  // namespace

SpawnUnderWay::SpawnUnderWay() : since_ticks_(TicksNow()) {
  MutexLock lock(TheSpawned().mu);
  TheSpawned().under_way.insert(since_ticks_);
}

SpawnUnderWay::~SpawnUnderWay() {
  Spawned& spawned = TheSpawned();
  MutexLock lock(spawned.mu);
  spawned.under_way.erase(spawned.under_way.find(since_ticks_));
}

void SpawnUnderWay::Started(pid_t pid, bool owns_session) {
  std::optional<uint64_t> start;
  if (const auto stat = ReadProcessStat(pid)) start = stat->start_ticks;
  Spawned& spawned = TheSpawned();
  MutexLock lock(spawned.mu);
  spawned.children[pid] = start;
  if (owns_session) spawned.sessions.insert(pid);
}

std::vector<AdoptedChild> AdoptedChildren() {
  std::vector<AdoptedChild> adopted;
  Spawned& spawned = TheSpawned();
  MutexLock lock(spawned.mu);
  const std::vector<pid_t> present = AllPids();
  // Without a look at /proc nobody is known, and nobody is forgotten.
  if (present.empty()) return adopted;
  std::set<pid_t> live_sessions;
  for (const pid_t pid : present) {
    const auto stat = ReadProcessStat(pid);
    if (!stat) continue;
    live_sessions.insert(stat->session);
    const bool is_anothers = IsSpawned(spawned, *stat) || spawned.sessions.contains(stat->session);
    if (stat->parent == ::getpid() && !is_anothers) adopted.push_back({pid, stat->start_ticks});
  }
  ForgetGone(spawned, present, live_sessions);
  return adopted;
}

void CollectAdopted() {
  while (true) {
    siginfo_t ended = {};
    if (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return;
    const auto stat = ReadProcessStat(ended.si_pid);
    if (!stat) return;
    Spawned& spawned = TheSpawned();
    MutexLock lock(spawned.mu);
    // Its caller waits for it soon; what is behind it, the next call finds.
    if (IsSpawned(spawned, *stat)) return;
    ::waitpid(ended.si_pid, nullptr, WNOHANG);
  }
}

}  // namespace meshrun::os
