// meshrun leave: a node leaves the job of its `meshrun run`, which goes on.
#include <fmt/format.h>
#include <signal.h>

#include <cerrno>
#include <memory>

#include "client/cli/context.h"
#include "client/cli/leaving.h"
#include "client/cli/signal_handling.h"
#include "client/daemon_process.h"
#include "client/run_registry.h"
#include "core/exit_codes.h"
#include "core/os/files.h"

namespace meshrun::client {
namespace {

constexpr std::chrono::minutes kPatience(5);

struct LeaveFlags {
  std::string job;
};

absl::StatusOr<RegisteredRun> RunToLeave(const std::string& job) {
  std::vector<RegisteredRun> runs = RunsHere({});
  std::erase_if(runs, [&](const RegisteredRun& run) { return !run.job_id.starts_with(job); });
  if (runs.size() == 1) return runs.front();
  if (runs.empty()) {
    return absl::NotFoundError(fmt::format("no 'meshrun run' of this user is on this host{}",
                                           job.empty() ? "" : ", or not of a job '" + job + "'"));
  }
  std::string named;
  for (const RegisteredRun& run : runs) {
    named += fmt::format("{}{} (pid {})", named.empty() ? "" : ", ", run.job_id, run.pid);
  }
  return absl::InvalidArgumentError(fmt::format(
      "{} runs are on this host: {}: name the job; of two nodes of one job, send its 'meshrun run' "
      "SIGTERM, with --leave-on-signal",
      runs.size(), named));
}

int Run(const LeaveFlags& flags) {
  const auto run = RunToLeave(flags.job);
  if (!run.ok()) return Fail(run.status());
  if (run->node.empty() || run->hosts) {
    return Fail(absl::FailedPreconditionError(CannotLeave(run->job_id, run->node.empty())));
  }
  const os::UniqueFd process = OpenPid(run->pid);
  if (!process || ::kill(run->pid, LeaveSignal()) != 0) {
    return Fail(
        os::ErrnoStatus(errno, fmt::format("the run of {} (pid {})", run->job_id, run->pid)));
  }
  if (!WaitReadable(process.get(), kPatience)) {
    return Fail(absl::DeadlineExceededError(
        fmt::format("{} has not left {}: its 'meshrun run' says why", run->node, run->job_id)));
  }
  return kExitOk;
}

}  // namespace

void AddLeave(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<LeaveFlags>();
  FlagSet flags = root.Command(
      "leave",
      "Takes this node out of the job of its 'meshrun run'\n\n"
      "The job goes on with the other nodes, which is not charged, and this node's 'meshrun run' "
      "ends with exit\ncode 0. A job that needs all its nodes (--nnodes 2) keeps them. Node 0 has "
      "the coordinator and stays.");
  flags.Examples(
      "  meshrun run --nnodes 1:3 --leave-on-signal ...     SIGTERM does the same\n"
      "  meshrun leave");
  flags.ListUnder("Run jobs");
  flags.Argument("JOB", &values->job, /*required=*/false,
                 "Its job, where several run here; the start of the id is enough");
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
