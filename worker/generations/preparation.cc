#include "worker/generations/preparation.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <string_view>
#include <utility>

#include "core/os/files.h"
#include "core/os/process.h"
#include "core/os/user.h"
#include "core/status.h"
#include "worker/generations/agent_socket.h"
#include "worker/logs/retention.h"
#include "worker/supervisor/unix_socket.h"

namespace meshrun::worker {
namespace {

constexpr char kRunningProgram[] = "/proc/self/exe";

// Path of the running program. By name where that is still the same file; else through
// /proc/self/exe: after an upgrade the name would start a supervisor of another version, which
// would read our launch file.
std::string ProgramPath(const std::string& path) {
  struct stat running, named;
  const bool same = ::stat(kRunningProgram, &running) == 0 && ::stat(path.c_str(), &named) == 0 &&
                    running.st_dev == named.st_dev && running.st_ino == named.st_ino;
  return same ? path : kRunningProgram;
}

absl::Status WritePrivate(const std::string& path, const google::protobuf::MessageLite& message) {
  return os::WriteFileAtomically(path, message.SerializeAsString(), 0600, /*sync=*/false);
}

// The job's submitter as this host knows it. PERMISSION_DENIED: nobody, or root.
absl::StatusOr<v1::RankUser> FindSubmitter(const v1::Prepare& prepare) {
  if (prepare.submitter().empty()) {
    return absl::PermissionDeniedError(
        "ranks run as the job's submitter here, and the coordinator does not say who that is");
  }
  MESHRUN_ASSIGN_OR_RETURN(const os::User user, os::FindUser(prepare.submitter()));
  if (user.uid == 0) {
    return absl::PermissionDeniedError(
        "the job was submitted by root, and with --run-as-submitter no rank runs as root: submit "
        "it "
        "as another user");
  }
  v1::RankUser out;
  out.set_name(user.name);
  out.set_uid(user.uid);
  out.set_gid(user.gid);
  out.set_home(user.home);
  out.set_shell(user.shell);
  for (const gid_t group : os::GroupsOf(user)) out.add_groups(group);
  return out;
}

}  // namespace

absl::Status WriteRecord(const std::string& directory, const v1::ProcessesRecord& record) {
  return WritePrivate(directory + "/record", record);
}

void Preparation::Run() {
  status = Write();
  if (status.ok()) return;
  connection.reset();
  RemoveCgroup(cgroup);
  (void)os::RemoveTree(plan_.paths.directory);
}

std::string Preparation::Doing() const {
  MutexLock lock(mu_);
  return doing_;
}

void Preparation::Begin(const std::string& what) {
  MutexLock lock(mu_);
  doing_ = what;
}

std::string Preparation::CgroupName() const {
  const v1::Fence& fence = generation().fence();
  return fmt::format("{}{}-{}{}", kCgroupPrefix, fence.job_id(), fence.generation(),
                     CgroupSuffix(plan_.node_id));
}

absl::Status Preparation::Write() {
  const std::string& directory = plan_.paths.directory;
  v1::SupervisorLaunch launch = plan_.launch;
  const v1::RankUser* user = nullptr;
  if (!plan_.paths.ranks.empty()) {
    Begin("the user '" + generation().prepare().submitter() + "'");
    MESHRUN_ASSIGN_OR_RETURN(*launch.mutable_user(), FindSubmitter(generation().prepare()));
    user = &launch.user();
    v1::ProgramSearch& search = *launch.mutable_search();
    if (search.working_dir().empty()) search.set_working_dir(user->home());
  }
  if (!plan_.agent_socket.empty()) {
    Begin(plan_.agent_socket);
    MESHRUN_ASSIGN_OR_RETURN(agent_listener, AgentSocket::Bind(plan_.agent_socket, user));
  }
  v1::ProcessesRecord record = plan_.record;
  if (plan_.cgroups.works()) {
    MESHRUN_ASSIGN_OR_RETURN(cgroup, plan_.cgroups.Create(CgroupName(), plan_.limits));
    *launch.mutable_cgroup() = cgroup;
    *record.mutable_cgroup() = cgroup;
  }
  Begin(directory);
  MESHRUN_RETURN_IF_ERROR(os::MakeDirectories(directory, 0700));
  MESHRUN_RETURN_IF_ERROR(WritePrivate(directory + "/launch", launch));
  MESHRUN_RETURN_IF_ERROR(WriteRecord(directory, record));
  // The socket is made here and handed over, so that a connection can be made before the supervisor
  // has started.
  const std::string socket = directory + "/sup.sock";
  MESHRUN_ASSIGN_OR_RETURN(const os::UniqueFd listener, ListenUnix(socket));
  MESHRUN_ASSIGN_OR_RETURN(connection, ConnectUnix(socket));
  Begin(plan_.paths.logs);
  MESHRUN_RETURN_IF_ERROR(os::MakeDirectories(plan_.paths.logs, 0700));
  MESHRUN_RETURN_IF_ERROR(WriteLogsOwner(plan_.paths.logs, generation().prepare().submitter()));

  Begin(plan_.program.path);
  os::SpawnOptions spawn;
  // What it leaves behind, if it is killed, is its job's.
  spawn.owns_session = false;
  spawn.argv = {ProgramPath(plan_.program.path), "supervise",   "--launch",
                directory + "/launch",           "--listen-fd", std::to_string(listener.get())};
  spawn.keep_fds = {listener.get()};
  if (plan_.program.lifeline_fd >= 0) {
    spawn.argv.insert(spawn.argv.end(),
                      {"--lifeline-fd", std::to_string(plan_.program.lifeline_fd)});
    spawn.keep_fds.push_back(plan_.program.lifeline_fd);
  }
  if (plan_.program.end_with_daemon) spawn.argv.push_back("--end-with-daemon");
  if (plan_.program.stdin_fd >= 0) {
    spawn.argv.insert(spawn.argv.end(), {"--stdin-fd", std::to_string(plan_.program.stdin_fd),
                                         "--stdin-rank", std::to_string(plan_.program.stdin_rank)});
    spawn.keep_fds.push_back(plan_.program.stdin_fd);
  }
  if (!plan_.program.stdin_directory.empty()) {
    spawn.argv.insert(spawn.argv.end(), {"--stdin-directory", plan_.program.stdin_directory});
  }
  if (plan_.program.terminal) {
    spawn.argv.insert(spawn.argv.end(),
                      {"--terminal", FormatTerminalSize(*plan_.program.terminal)});
  }
  if (given_up_) return absl::CancelledError("given up");
  MESHRUN_ASSIGN_OR_RETURN(pid, os::Spawn(spawn));
  return absl::OkStatus();
}

}  // namespace meshrun::worker
