// Control groups, cgroups(7), of version 1 and 2: limits that the kernel keeps for all processes of
// one job on this host, whatever they fork, and one command that ends them all.
//
// A group is made below the daemon's own. The daemon and its supervisors stay outside: what kills a
// job for its memory never kills them. Needs the right to write there: root, or a unit with
// Delegate=yes.
// Threads: any. Paths can be a test's own files; a file that is not there is made then.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "meshrun/v1/supervisor.pb.h"

namespace meshrun::worker {

// What a group can hold a job to.
//   memory     bytes of its processes, the files that they have in memory, and /dev/shm
//   cpu        its share of the cores, where jobs want more than there are
//   cpu-quota  never more than its cores, even if others are idle
//   pids       processes and threads
//   devices    GPUs that are not its own cannot be opened
inline constexpr std::string_view kAllLimits[] = {"memory", "cpu", "cpu-quota", "pids", "devices"};

// Names of groups begin with this, and end with whose they are: several workers may make theirs in
// one place.
inline constexpr std::string_view kCgroupPrefix = "meshrun-";
inline std::string CgroupSuffix(const std::string& node_id) { return "-" + node_id; }

class Cgroups {
 public:
  struct Files {
    std::string membership = "/proc/self/cgroup";
    std::string mounts = "/proc/self/mountinfo";
  };

  // Looks for where groups can be made, and tries each limit on one. `wanted`: of kAllLimits;
  // empty: makes no groups. With version 2, processes may not stay beside groups with limits: the
  // daemon goes to a group of its own, "meshrun-daemon", unless its unit has put it into one
  // (DelegateSubgroup=daemon).
  static Cgroups Find(const std::set<std::string>& wanted, const Files& files);
  static Cgroups Find(const std::set<std::string>& wanted) { return Find(wanted, Files()); }
  // Makes none.
  Cgroups() = default;

  // Those of the wanted ones, in the order of kAllLimits.
  const std::vector<std::string>& kept() const { return kept_; }
  // Each with the reason: "memory (/sys/fs/cgroup/...: Permission denied)".
  const std::vector<std::string>& lacking() const { return lacking_; }
  // Whether groups are made at all.
  bool works() const { return !parents_.empty(); }

  // Makes the group and sets its limits, as far as they are kept. Errors: from the files;
  // ALREADY_EXISTS: there are processes in a group of that name.
  absl::StatusOr<v1::ControlGroup> Create(const std::string& name,
                                          const v1::ResourceLimits& limits) const;

  // Removes groups of this worker that nothing is in, except `used` (directories).
  void RemoveOthers(const std::string& node_id, const std::set<std::string>& used) const;

 private:
  std::vector<v1::ControlGroup::Hierarchy> parents_;
  std::vector<std::string> kept_;
  std::vector<std::string> lacking_;
};

// Sets `group`'s limits to its `limits`, after these changed, or after the controllers were off.
absl::Status ApplyLimits(const v1::ControlGroup& group);

// The calling process, and with it what it starts, goes into the group.
absl::Status EnterCgroup(const v1::ControlGroup& group);

// Kills all processes in it and in groups that these have made below it. With version 1 they are
// stopped first, so that none can fork away. Returns whether any was there: call again until none
// is. Waits for 20 ms at most.
bool KillCgroup(const v1::ControlGroup& group);

bool IsPopulated(const v1::ControlGroup& group);

// Since the group was made.
struct CgroupCounts {
  // Processes of it that the kernel has killed for memory, the host's or its own, and how often its
  // own did not suffice.
  uint64_t memory_kills = 0;
  uint64_t memory_full = 0;
  // Forks that its limit of processes has refused.
  uint64_t refused_forks = 0;

  bool operator==(const CgroupCounts&) const = default;
};
CgroupCounts CountsOf(const v1::ControlGroup& group);

// Whether its own memory did not suffice between two looks.
bool RanOutOfMemory(const CgroupCounts& before, const CgroupCounts& now);

// "killed for memory: the 500 MiB of the job on this host", or why a fork failed; empty where
// neither has happened between two looks.
std::string WhatLimitsDid(const v1::ControlGroup& group, const CgroupCounts& before,
                          const CgroupCounts& now);

// Once nothing is left in it, with the groups below it.
void RemoveCgroup(const v1::ControlGroup& group);

// A systemd that knows no DelegateSubgroup= (before 254) cannot start the daemon again in a group
// whose controllers are on while ranks of the last one run there. This turns them off, where there
// is a "meshrun-daemon"; it is for ExecStopPost=, which systemd runs in the group ".control" beside
// it, and does nothing elsewhere. The daemon turns them on and sets the limits again.
absl::Status ReleaseControllers(const Cgroups::Files& files);
inline absl::Status ReleaseControllers() { return ReleaseControllers(Cgroups::Files()); }

}  // namespace meshrun::worker
