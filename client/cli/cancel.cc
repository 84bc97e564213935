// meshrun cancel: ends jobs.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "client/cli/context.h"
#include "client/cli/submission.h"
#include "client/render/report.h"
#include "core/exit_codes.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::client {
namespace {

struct CancelFlags {
  CoordinatorFlags coordinator;
  std::string output;
  std::vector<std::string> jobs;
  std::string reason = "by 'meshrun cancel'";
  bool now = false;
  bool wait = false;
};

// Adds the job as it is afterwards to `done`.
int CancelOne(Client& client, const std::string& name, const CancelFlags& flags,
              v1::ListJobsResponse* done) {
  const auto found = FindJob(client, name);
  if (!found.ok()) return Fail(found.status());
  const std::string id = found->job().job_id();
  if (HasEnded(found->job().state())) {
    Say(fmt::format("{} had ended before: {}", id, StateName(found->job().state())));
    *done->add_jobs() = found->job();
    return kExitOk;
  }
  auto job = client.Cancel(id, flags.now, flags.reason);
  if (!job.ok()) return Fail(job.status());
  if (flags.wait) {
    const absl::Status status = client.Watch(id, [&](const v1::Job& now) { *job = now; });
    if (!status.ok()) return Fail(status);
  }
  *done->add_jobs() = *job;
  if (flags.output != "json")
    fmt::print("{}  {}\n", id, HasEnded(job->state()) ? StateName(job->state()) : "stopping");
  return kExitOk;
}

int Run(const CancelFlags& flags) {
  const auto client = ConnectTo(flags.coordinator);
  if (!client.ok()) return Fail(client.status());
  int worst = kExitOk;
  v1::ListJobsResponse done;
  for (const std::string& name : flags.jobs)
    worst = std::max(worst, CancelOne(**client, name, flags, &done));
  if (flags.output == "json") fmt::print("{}", ToJson(done));
  return worst;
}

}  // namespace

void AddCancel(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<CancelFlags>();
  FlagSet flags =
      root.Command("cancel",
                   "Ends jobs\n\n"
                   "Their ranks get SIGTERM, and SIGKILL after the job's --kill-grace.");
  flags.Examples(
      "  meshrun cancel geoid-k3x9w2\n"
      "  meshrun cancel --now geoid-k3x9w2     SIGKILL at once\n"
      "  meshrun ps -q | xargs meshrun cancel  everything that is active");
  flags.ListUnder("Run jobs");
  flags.Arguments("JOB", &values->jobs, "Jobs; the start of an id is enough");
  flags.Switch("--now", &values->now, "Kill without grace");
  flags.Switch("--wait", &values->wait, "Return when nothing of them runs any more");
  flags.Text("--reason", &values->reason, "TEXT", "Said in the job's description");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
