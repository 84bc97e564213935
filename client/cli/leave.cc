// meshrun leave: a node leaves the job of its `meshrun run`, which goes on.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "client/cli/context.h"
#include "client/cli/leaving.h"
#include "client/cli/signal_handling.h"
#include "client/daemon_process.h"
#include "client/run_registry.h"
#include "core/exit_codes.h"
#include "core/os/files.h"
#include "core/text.h"

namespace meshrun::client {
namespace {

constexpr std::chrono::minutes kPatience(5);

struct LeaveFlags {
  std::string job;
};

absl::StatusOr<RegisteredRun> RunToLeave(const std::string& job) {
  std::vector<RegisteredRun> runs = RunsHere({});
  const bool whole = std::any_of(runs.begin(), runs.end(),
                                 [&](const RegisteredRun& run) { return run.job_id == job; });
  std::erase_if(runs, [&](const RegisteredRun& run) {
    return whole ? run.job_id != job : !run.job_id.starts_with(job);
  });
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
  const std::string which = fmt::format("the 'meshrun run' of {} (pid {})", run->job_id, run->pid);
  const os::UniqueFd process = OpenPid(run->pid);
  if (!process) return Fail(os::ErrnoStatus(errno, which));
  const auto client = ConnectTo({}, *run);
  if (!client.ok()) return Fail(client.status());
  const auto agreed = (*client)->DrainNode(LeaveRequest(run->node, "by 'meshrun leave'"));
  if (absl::IsFailedPrecondition(agreed.status())) {
    Fail(agreed.status());
    return kExitJobFailed;
  }
  if (!agreed.ok()) return Fail(agreed.status());
  // Another one may have ended it already.
  if (::kill(run->pid, LeaveSignal()) != 0 && errno != ESRCH) {
    return Fail(os::ErrnoStatus(errno, which));
  }
  if (!WaitReadable(process.get(), kPatience)) {
    return Fail(absl::DeadlineExceededError(
        fmt::format("{} has not left {} after {}: its 'meshrun run' says why", run->node,
                    run->job_id, FormatDuration(kPatience))));
  }
  const auto job = (*client)->Get(run->job_id);
  if (!job.ok()) {
    Say(fmt::format("{} has ended, and whether {} had left before is not known: {}", which,
                    run->node, std::string(job.status().message())));
    return kExitJobFailed;
  }
  if (const absl::Status left = CheckHasLeft(run->node, job->job()); !left.ok()) {
    Fail(left);
    return kExitJobFailed;
  }
  fmt::print("{}\n", HasLeftLine(run->node, job->job()));
  return kExitOk;
}

}  // namespace

void AddLeave(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<LeaveFlags>();
  FlagSet flags = root.Command(
      "leave",
      "Takes this node out of the job of its 'meshrun run'\n\n"
      "The job goes on with the other nodes, which is not charged, and this node's 'meshrun run' "
      "ends with exit\ncode 0. A job that needs all its nodes (--nnodes 2) keeps them, and this "
      "command ends with exit code 1.\nNode 0 has the coordinator and stays.");
  flags.Examples(
      "  meshrun run --nnodes 1:3 --leave-on-signal ...     SIGTERM does the same\n"
      "  meshrun leave");
  flags.ListUnder("Run jobs");
  flags.Argument("JOB", &values->job, /*required=*/false,
                 "Its job, where several run here; the start of the id is enough");
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
