// meshrun ps: the jobs of the coordinator.
#include <fmt/format.h>

#include <memory>

#include "client/cli/context.h"
#include "client/render/report.h"
#include "core/exit_codes.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::client {
namespace {

struct PsFlags {
  CoordinatorFlags coordinator;
  std::string output;
  bool all = false;
  bool quiet = false;
  uint32_t limit = 100;
};

int Run(const PsFlags& flags) {
  const auto client = ConnectTo(flags.coordinator);
  if (!client.ok()) return Fail(client.status());
  bool more = false;
  const auto jobs = (*client)->List(/*active_only=*/!flags.all, flags.limit, &more);
  if (!jobs.ok()) return Fail(jobs.status());
  if (flags.output == "json") {
    v1::ListJobsResponse response;
    for (const v1::Job& job : *jobs) *response.add_jobs() = job;
    fmt::print("{}", ToJson(response));
  } else if (flags.quiet) {
    for (const v1::Job& job : *jobs) fmt::print("{}\n", job.job_id());
  } else if (jobs->empty()) {
    Say(flags.all ? "no jobs yet"
                  : "no job is active; 'meshrun ps --all' lists those that have ended");
  } else {
    fmt::print("{}", JobTable(*jobs, WallNow(), TableWidth(StyleOf(1))));
  }
  if (more) {
    Say(fmt::format("these are the newest {}: --limit N shows more", flags.limit));
  }
  return kExitOk;
}

}  // namespace

void AddPs(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<PsFlags>();
  FlagSet flags = root.Command("ps", "Lists jobs, newest first");
  flags.Examples(
      "  meshrun ps                    what waits and runs\n"
      "  meshrun ps --all              also what has ended\n"
      "  meshrun ps --all -o json | jq -r '.jobs[] | select(.state == \"JOB_STATE_FAILED\") | "
      ".jobId'");
  flags.ListUnder("Look");
  flags.Switch("-a,--all", &values->all, "Also jobs that have ended");
  flags.Switch("-q,--quiet", &values->quiet, "Only their ids");
  flags.Number("--limit", &values->limit, "At most so many (default 100)");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
