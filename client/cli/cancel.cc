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

// Adds the jobs as they are afterwards to `done`: one, or all of an array.
int CancelNamed(Client& client, const std::string& name, const CancelFlags& flags,
                v1::ListJobsResponse* done) {
  const auto found = FindJobs(client, name);
  if (!found.ok()) return Fail(found.status());
  const bool is_array = found->front().array_id() == name;
  const auto cancelled =
      client.Cancel(is_array ? name : found->front().job_id(), flags.now, flags.reason);
  if (!cancelled.ok()) return Fail(cancelled.status());
  const auto after = is_array ? FindJobs(client, name) : std::vector<v1::Job>{*cancelled};
  if (!after.ok()) return Fail(after.status());
  for (size_t i = 0; i < after->size(); ++i) {
    v1::Job job = (*after)[i];
    if (i < found->size() && HasEnded((*found)[i].state())) {
      Say(fmt::format("{} had ended before: {}", job.job_id(), StateName(job.state())));
      *done->add_jobs() = std::move(job);
      continue;
    }
    if (flags.wait && !HasEnded(job.state())) {
      const absl::Status status =
          client.Watch(job.job_id(), [&](const v1::Job& now) { job = now; });
      if (!status.ok()) return Fail(status);
    }
    if (flags.output != "json") {
      fmt::print("{}  {}\n", job.job_id(),
                 HasEnded(job.state()) ? StateName(job.state()) : "stopping");
    }
    *done->add_jobs() = std::move(job);
  }
  return kExitOk;
}

int Run(const CancelFlags& flags) {
  int worst = kExitOk;
  v1::ListJobsResponse done;
  Connections connections(flags.coordinator);
  for (const std::string& name : flags.jobs) {
    const auto client = connections.To(name);
    if (!client.ok()) return Fail(client.status());
    worst = std::max(worst, CancelNamed(**client, name, flags, &done));
  }
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
      "  meshrun cancel sweep-a1b2c3           all jobs of an array; sweep-a1b2c3_7 is one\n"
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
