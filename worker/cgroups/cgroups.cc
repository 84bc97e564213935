#include "worker/cgroups/cgroups.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "core/os/files.h"
#include "core/parse_integer.h"
#include "core/status.h"
#include "core/text.h"
#include "worker/cgroups/control_files.h"
#include "worker/cgroups/hierarchies.h"
#include "worker/cgroups/limits.h"

namespace meshrun::worker {
namespace {

using Hierarchy = v1::ControlGroup::Hierarchy;

// That the daemon makes, and that its unit has made for it.
constexpr char kDaemonGroup[] = "meshrun-daemon";
constexpr char kUnitsDaemonGroup[] = "daemon";
// Where systemd runs the commands of a unit with Delegate=yes.
constexpr char kServiceManagerGroup[] = ".control";
// Stopping the tasks of a group of version 1 takes a moment, or, in an uninterruptible sleep, more.
constexpr int kFreezeLooks = 10;
constexpr std::chrono::milliseconds kFreezeLook(2);
// A group of version 1 is full at so many parts less one of its limit.
constexpr uint64_t kFullOf = 50;

const Hierarchy* FindHierarchy(const v1::ControlGroup& group, std::string_view controller) {
  for (const Hierarchy& hierarchy : group.hierarchies()) {
    if (Has(hierarchy, controller)) return &hierarchy;
  }
  return nullptr;
}

// The kernel's controller of a limit.
std::string_view ControllerOf(std::string_view limit) {
  return limit == "cpu-quota" ? "cpu" : limit;
}

// The group and those below it, which processes of it have made; parents first.
std::vector<std::string> Tree(const std::string& directory) {
  std::vector<std::string> tree = {directory};
  for (size_t at = 0; at < tree.size(); ++at) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(tree[at], ignored)) {
      if (entry.is_directory(ignored)) tree.push_back(entry.path());
    }
  }
  return tree;
}

// Numbers of the processes in the group and below it.
std::vector<pid_t> Members(const Hierarchy& hierarchy) {
  std::vector<pid_t> pids;
  for (const std::string& directory : Tree(hierarchy.directory())) {
    for (const std::string& word : Words(directory + "/cgroup.procs")) {
      if (const auto pid = ParseInteger<pid_t>(word); pid && *pid > 0) pids.push_back(*pid);
    }
  }
  return pids;
}

// Lets children of `group`, the daemon's own of version 2, have limits of `controllers`. Processes
// that are beside them must go: this one does, where it is alone.
absl::Status Enable(const std::string& group, std::string_view controller) {
  const std::string control = group + "/cgroup.subtree_control";
  const std::vector<std::string> enabled = Words(control);
  if (std::find(enabled.begin(), enabled.end(), controller) != enabled.end())
    return absl::OkStatus();
  const std::string request = fmt::format("+{}", controller);
  absl::Status status = Write(control, request);
  if (status.ok()) return status;
  const std::vector<std::string> members = Words(group + "/cgroup.procs");
  if (members != std::vector<std::string>{std::to_string(::getpid())}) return status;
  const std::string own = group + "/" + kDaemonGroup;
  MESHRUN_RETURN_IF_ERROR(os::MakeDirectories(own, 0755));
  MESHRUN_RETURN_IF_ERROR(Write(own + "/cgroup.procs", "0"));
  return Write(control, request);
}

std::string ParentOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Where groups with this limit can be made, or why not.
absl::StatusOr<Hierarchy> FindParent(const std::vector<Hierarchy>& own, std::string_view limit) {
  const std::string_view controller = ControllerOf(limit);
  for (const Hierarchy& hierarchy : own) {
    if (hierarchy.unified() || !Has(hierarchy, controller)) continue;
    if (::access(hierarchy.directory().c_str(), W_OK | X_OK) != 0)
      return os::ErrnoStatus(errno, hierarchy.directory());
    return hierarchy;
  }
  for (const Hierarchy& hierarchy : own) {
    if (!hierarchy.unified()) continue;
    Hierarchy parent = hierarchy;
    const std::string name = NameOf(parent.directory());
    if (name == kDaemonGroup || name == kUnitsDaemonGroup)
      parent.set_directory(ParentOf(parent.directory()));
    const std::string& directory = parent.directory();
    const auto offered = Words(directory + "/cgroup.controllers");
    // Version 2 has no controller for devices; there it is a program.
    const bool needs_one = limit != "devices";
    if (needs_one && std::find(offered.begin(), offered.end(), controller) == offered.end())
      return absl::NotFoundError(fmt::format("{} has no controller '{}'", directory, controller));
    if (::access(directory.c_str(), W_OK | X_OK) != 0) return os::ErrnoStatus(errno, directory);
    if (needs_one) MESHRUN_RETURN_IF_ERROR(Enable(directory, controller));
    return parent;
  }
  return absl::NotFoundError(fmt::format("the kernel has no controller '{}' here", controller));
}

// A limit as it is now, which may have grown since `group` was written down.
uint64_t MemoryOf(const v1::ControlGroup& group) {
  const Hierarchy* const in = FindHierarchy(group, "memory");
  const std::string file =
      in == nullptr ? ""
                    : in->directory() + (in->unified() ? "/memory.max" : "/memory.limit_in_bytes");
  return NumberIn(file).value_or(group.limits().memory_bytes());
}

uint64_t PidsOf(const v1::ControlGroup& group) {
  const Hierarchy* const in = FindHierarchy(group, "pids");
  return NumberIn(in == nullptr ? "" : in->directory() + "/pids.max")
      .value_or(group.limits().pids());
}

// Limits that every group may have, of every kind.
v1::ResourceLimits ProbeLimits() {
  v1::ResourceLimits limits;
  limits.set_memory_bytes(uint64_t{1} << 30);
  limits.set_cores(1);
  limits.set_pids(1024);
  // A device that nobody has.
  limits.add_denied()->set_major(4095);
  return limits;
}

// Makes a group there and sets the limit, as for a job.
absl::Status Try(const Hierarchy& parent, std::string_view limit) {
  Hierarchy probe = parent;
  probe.set_directory(fmt::format("{}/{}probe-{}", parent.directory(), kCgroupPrefix, ::getpid()));
  if (::mkdir(probe.directory().c_str(), 0755) != 0 && errno != EEXIST)
    return os::ErrnoStatus(errno, probe.directory());
  absl::Status status = SetLimit(probe, limit, ProbeLimits());
  ::rmdir(probe.directory().c_str());
  return status;
}

// Version 1, and kernels before 5.14: tasks that are stopped cannot fork, and their numbers stay
// theirs.
void FreezeAndKill(const v1::ControlGroup& group) {
  const Hierarchy* freezer = FindHierarchy(group, "freezer");
  for (const Hierarchy& hierarchy : group.hierarchies()) {
    if (freezer == nullptr && hierarchy.unified()) freezer = &hierarchy;
  }
  const auto freeze = [freezer](bool on) {
    if (freezer == nullptr) return;
    if (freezer->unified()) {
      (void)Write(freezer->directory() + "/cgroup.freeze", on ? "1" : "0");
    } else {
      (void)Write(freezer->directory() + "/freezer.state", on ? "FROZEN" : "THAWED");
    }
  };
  const auto frozen = [freezer] {
    if (freezer == nullptr) return true;
    if (freezer->unified())
      return NumberAfter(freezer->directory() + "/cgroup.events", "frozen") == 1;
    return Words(freezer->directory() + "/freezer.state") == std::vector<std::string>{"FROZEN"};
  };
  freeze(true);
  for (int look = 0; look < kFreezeLooks && !frozen(); ++look)
    std::this_thread::sleep_for(kFreezeLook);
  for (const Hierarchy& hierarchy : group.hierarchies()) {
    for (const pid_t pid : Members(hierarchy)) ::kill(pid, SIGKILL);
  }
  freeze(false);
}

}  // namespace

Cgroups Cgroups::Find(const std::set<std::string>& wanted, const Files& files) {
  Cgroups found;
  if (wanted.empty()) return found;
  const std::vector<Hierarchy> own = FindHierarchies(files.membership, files.mounts);
  const auto add = [&found](const Hierarchy& parent, std::string_view limit) {
    auto same = std::find_if(found.parents_.begin(), found.parents_.end(), [&](const auto& each) {
      return each.directory() == parent.directory();
    });
    if (same == found.parents_.end()) {
      same = found.parents_.insert(same, parent);
      same->clear_controllers();
    }
    same->add_controllers(std::string(limit));
  };
  for (const std::string_view limit : kAllLimits) {
    if (!wanted.contains(std::string(limit))) continue;
    auto parent = FindParent(own, limit);
    if (parent.ok()) {
      if (const absl::Status tried = Try(*parent, limit); !tried.ok()) parent = tried;
    }
    if (parent.ok()) {
      add(*parent, limit);
      found.kept_.emplace_back(limit);
    } else {
      found.lacking_.push_back(fmt::format(
          "{} ({})", limit,
          std::string_view(parent.status().message().data(), parent.status().message().size())));
    }
  }
  // To end all processes at once, beside the limits.
  const bool unified = std::any_of(found.parents_.begin(), found.parents_.end(),
                                   [](const Hierarchy& parent) { return parent.unified(); });
  if (const auto freezer = FindParent(own, "freezer");
      !unified && freezer.ok() && !freezer->unified())
    add(*freezer, "freezer");
  return found;
}

absl::StatusOr<v1::ControlGroup> Cgroups::Create(const std::string& name,
                                                 const v1::ResourceLimits& limits) const {
  v1::ControlGroup group;
  *group.mutable_limits() = limits;
  for (const Hierarchy& parent : parents_) {
    Hierarchy& hierarchy = *group.add_hierarchies();
    hierarchy = parent;
    hierarchy.set_directory(parent.directory() + "/" + name);
  }
  if (IsPopulated(group))
    return absl::AlreadyExistsError(fmt::format("there are processes in the cgroup {}", name));
  absl::Status status;
  for (const Hierarchy& hierarchy : group.hierarchies()) {
    if (::mkdir(hierarchy.directory().c_str(), 0755) != 0 && errno != EEXIST)
      status = os::ErrnoStatus(errno, hierarchy.directory());
    if (!status.ok()) break;
  }
  if (status.ok()) status = ApplyLimits(group);
  if (status.ok()) return group;
  RemoveCgroup(group);
  return status;
}

void Cgroups::RemoveOthers(const std::string& node_id, const std::set<std::string>& used) const {
  const std::string suffix = CgroupSuffix(node_id);
  for (const Hierarchy& parent : parents_) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(parent.directory(), ignored)) {
      const std::string name = entry.path().filename();
      if (!name.starts_with(kCgroupPrefix) || !name.ends_with(suffix)) continue;
      // The kernel keeps what has processes in it.
      if (!used.contains(entry.path())) ::rmdir(entry.path().c_str());
    }
  }
}

absl::Status ApplyLimits(const v1::ControlGroup& group) {
  for (const Hierarchy& hierarchy : group.hierarchies()) {
    if (hierarchy.unified()) {
      // After ReleaseControllers they are off.
      for (const std::string& limit : hierarchy.controllers()) {
        if (limit == "devices") continue;
        MESHRUN_RETURN_IF_ERROR(Enable(ParentOf(hierarchy.directory()), ControllerOf(limit)));
      }
    }
    for (const std::string& limit : hierarchy.controllers())
      MESHRUN_RETURN_IF_ERROR(SetLimit(hierarchy, limit, group.limits()));
  }
  return absl::OkStatus();
}

absl::Status EnterCgroup(const v1::ControlGroup& group) {
  for (const Hierarchy& hierarchy : group.hierarchies())
    MESHRUN_RETURN_IF_ERROR(Write(hierarchy.directory() + "/cgroup.procs", "0"));
  return absl::OkStatus();
}

bool KillCgroup(const v1::ControlGroup& group) {
  if (!IsPopulated(group)) return false;
  // Version 1, and kernels before 5.14, have no such file; a process may be in one hierarchy alone.
  bool all = true;
  for (const Hierarchy& hierarchy : group.hierarchies())
    all = hierarchy.unified() && Write(hierarchy.directory() + "/cgroup.kill", "1").ok() && all;
  if (!all) FreezeAndKill(group);
  return true;
}

bool IsPopulated(const v1::ControlGroup& group) {
  for (const Hierarchy& hierarchy : group.hierarchies()) {
    if (hierarchy.unified() &&
        NumberAfter(hierarchy.directory() + "/cgroup.events", "populated") == 1) {
      return true;
    }
    if (!hierarchy.unified() && !Members(hierarchy).empty()) return true;
  }
  return false;
}

CgroupCounts CountsOf(const v1::ControlGroup& group) {
  CgroupCounts counts;
  if (const Hierarchy* const memory = FindHierarchy(group, "memory")) {
    const std::string& directory = memory->directory();
    counts.memory_kills = NumberAfter(
        directory + (memory->unified() ? "/memory.events" : "/memory.oom_control"), "oom_kill");
    if (memory->unified()) {
      counts.memory_full = NumberAfter(directory + "/memory.events", "oom");
    } else if (NumberIn(directory + "/memory.max_usage_in_bytes").value_or(0) * kFullOf >=
               MemoryOf(group) * (kFullOf - 1)) {
      // Newer kernels do not count failures here: what was nearly full was so at each kill.
      counts.memory_full = counts.memory_kills;
    }
  }
  if (const Hierarchy* const pids = FindHierarchy(group, "pids"))
    counts.refused_forks = NumberAfter(pids->directory() + "/pids.events", "max");
  return counts;
}

bool RanOutOfMemory(const CgroupCounts& before, const CgroupCounts& now) {
  // Else it was the host that had too little.
  return now.memory_kills > before.memory_kills && now.memory_full > before.memory_full;
}

std::string WhatLimitsDid(const v1::ControlGroup& group, const CgroupCounts& before,
                          const CgroupCounts& now) {
  if (RanOutOfMemory(before, now)) {
    return fmt::format("killed for memory: the {} of the job on this host",
                       FormatBytes(MemoryOf(group)));
  }
  if (now.refused_forks > before.refused_forks) {
    return fmt::format("a fork was refused: the {} processes and threads of the job on this host",
                       PidsOf(group));
  }
  return "";
}

void RemoveCgroup(const v1::ControlGroup& group) {
  for (const Hierarchy& hierarchy : group.hierarchies()) {
    std::vector<std::string> tree = Tree(hierarchy.directory());
    for (auto below = tree.rbegin(); below != tree.rend(); ++below) ::rmdir(below->c_str());
  }
}

absl::Status ReleaseControllers(const Cgroups::Files& files) {
  for (const Hierarchy& own : FindHierarchies(files.membership, files.mounts)) {
    if (!own.unified() || NameOf(own.directory()) != kServiceManagerGroup) continue;
    const std::string unit = ParentOf(own.directory());
    if (::access((unit + "/" + kDaemonGroup).c_str(), F_OK) != 0) continue;
    const std::string control = unit + "/cgroup.subtree_control";
    for (const std::string& controller : Words(control))
      MESHRUN_RETURN_IF_ERROR(Write(control, "-" + controller));
  }
  return absl::OkStatus();
}

}  // namespace meshrun::worker
