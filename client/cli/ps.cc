// meshrun ps: the jobs of the coordinator.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <memory>
#include <set>

#include "client/cli/context.h"
#include "client/render/report.h"
#include "core/exit_codes.h"
#include "core/status.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::client {
namespace {

struct PsFlags {
  CoordinatorFlags coordinator;
  std::string output;
  bool all = false;
  bool quiet = false;
  uint32_t limit = 100;
  std::string user;
  std::vector<std::string> states;
};

// "running", "RUNNING".
absl::StatusOr<v1::JobState> ParseState(const std::string& text) {
  std::string name = text;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  if (v1::JobState_Parse("JOB_STATE_" + name, &state) && state != v1::JOB_STATE_UNSPECIFIED)
    return state;
  std::vector<std::string> names;
  for (int i = 1; i < v1::JobState_ARRAYSIZE; ++i) {
    if (!v1::JobState_IsValid(i)) continue;
    names.push_back(StateName(static_cast<v1::JobState>(i)));
    std::transform(names.back().begin(), names.back().end(), names.back().begin(),
                   [](unsigned char c) { return std::tolower(c); });
  }
  return absl::InvalidArgumentError(fmt::format(
      "--state: '{}' is no state of a job: write one of {}", text, fmt::join(names, ", ")));
}

absl::StatusOr<std::vector<v1::Job>> JobsOfCoordinator(const PsFlags& flags,
                                                       const v1::ListJobsRequest& request,
                                                       bool* more) {
  MESHRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, ConnectTo(flags.coordinator));
  return client->List(request, flags.limit, more);
}

// Jobs of `meshrun run` on this host. A run that is ending may not answer any more.
std::vector<v1::Job> JobsOfRuns(const CoordinatorFlags& flags, const v1::ListJobsRequest& request) {
  std::vector<v1::Job> out;
  std::set<std::string> seen;
  for (const RegisteredRun& run : RunsHere(flags)) {
    // Several nodes of a job may be on this host.
    if (!seen.insert(run.job_id).second) continue;
    const auto client = ConnectTo(flags, run);
    auto jobs = client.ok() ? (*client)->List(request, 1) : client.status();
    if (jobs.ok()) std::move(jobs->begin(), jobs->end(), std::back_inserter(out));
  }
  return out;
}

int Run(const PsFlags& flags) {
  v1::ListJobsRequest request;
  // Whoever names a state means jobs that have ended too.
  request.set_active_only(!flags.all && flags.states.empty());
  request.set_user(flags.user);
  request.set_running_first(true);
  for (const std::string& text : flags.states) {
    const auto state = ParseState(text);
    if (!state.ok()) return Fail(state.status());
    request.add_states(*state);
  }
  bool more = false;
  std::vector<v1::Job> runs = JobsOfRuns(flags.coordinator, request);
  absl::StatusOr<std::vector<v1::Job>> jobs = JobsOfCoordinator(flags, request, &more);
  if (!jobs.ok() && (runs.empty() || !absl::IsUnavailable(jobs.status()))) {
    return Fail(jobs.status());
  }
  if (jobs.ok()) std::move(jobs->begin(), jobs->end(), std::back_inserter(runs));
  jobs = std::move(runs);
  if (flags.output == "json") {
    v1::ListJobsResponse response;
    for (const v1::Job& job : *jobs) *response.add_jobs() = job;
    fmt::print("{}", ToJson(response));
  } else if (flags.quiet) {
    for (const v1::Job& job : *jobs) fmt::print("{}\n", job.job_id());
  } else if (jobs->empty()) {
    const bool narrowed = !flags.user.empty() || !flags.states.empty();
    const bool hides_ended = !flags.all && flags.states.empty();
    Say(hides_ended ? fmt::format("no {}job is active; --all lists those that have ended too",
                                  narrowed ? "such " : "")
        : narrowed  ? "no such job"
                    : "no jobs yet");
  } else {
    fmt::print("{}", JobTable(*jobs, WallNow(), TableWidth(StyleOf(1))));
  }
  if (more) {
    Say(fmt::format("these are the first {}: --limit N shows more", flags.limit));
  }
  return kExitOk;
}

}  // namespace

void AddPs(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<PsFlags>();
  FlagSet flags = root.Command(
      "ps",
      "Lists jobs: those that run, those that wait, and with --all those that have ended\n\n"
      "Of each kind the newest come first. Jobs of 'meshrun run' on this host are listed too, "
      "while "
      "they run.");
  flags.Examples(
      "  meshrun ps                    what waits and runs\n"
      "  meshrun ps --all              also what has ended\n"
      "  meshrun ps --user ada --state failed\n"
      "  meshrun ps --all -o json | jq -r '.jobs[] | select(.state == \"JOB_STATE_FAILED\") | "
      ".jobId'");
  flags.ListUnder("Look");
  flags.Switch("-a,--all", &values->all, "Also jobs that have ended");
  flags.Text("--user", &values->user, "NAME", "Only this user's");
  flags.Texts("--state", &values->states, "STATE", "Only in this state; repeatable");
  flags.Switch("-q,--quiet", &values->quiet, "Only their ids");
  flags.Number("--limit", &values->limit, "At most so many (default 100)");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
