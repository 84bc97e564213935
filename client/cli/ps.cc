// meshrun ps: the jobs of the coordinator.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
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
  const auto client = ConnectTo(flags.coordinator);
  if (!client.ok()) return Fail(client.status());
  bool more = false;
  const auto jobs = (*client)->List(request, flags.limit, &more);
  if (!jobs.ok()) return Fail(jobs.status());
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
      "Of each kind the newest come first.");
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
