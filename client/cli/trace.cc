// meshrun trace: one picture of what all ranks of a job did in their last steps.
#include "client/render/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "client/cli/context.h"
#include "client/render/style.h"
#include "core/exit_codes.h"
#include "core/os/files.h"
#include "core/status.h"
#include "core/text.h"

namespace meshrun::client {
namespace {

struct TraceFlags {
  CoordinatorFlags coordinator;
  std::string job;
  std::string file;
  uint32_t steps = 5;
  std::string wait = "30s";
};

// Ranks that do not answer are named after it.
constexpr std::chrono::seconds kRecordsWait(5);
// A rank keeps so many of each group.
constexpr uint32_t kMostOperations = 1024;
constexpr std::chrono::milliseconds kAskAgain(200);

absl::StatusOr<JobTrace> Collect(Client& client, const std::string& name, int steps) {
  MESHRUN_ASSIGN_OR_RETURN(const v1::GetJobResponse answer, client.Get(name));
  v1::GetFlightRecordsRequest request;
  request.set_job_id(answer.job().job_id());
  request.set_most_operations(kMostOperations);
  request.set_all_ranks(true);
  MESHRUN_ASSIGN_OR_RETURN(const auto records, client.GetFlightRecords(request, kRecordsWait));
  v1::ListEventsRequest events_request;
  events_request.set_job_id(answer.job().job_id());
  MESHRUN_ASSIGN_OR_RETURN(const auto events, client.ListEvents(events_request));
  return MakeTrace(answer.job(), records, events, steps);
}

// Until the job has reported enough steps whose collectives are all known, or has ended.
absl::StatusOr<JobTrace> CollectEnough(Client& client, const TraceFlags& flags,
                                       std::chrono::nanoseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  const int steps = static_cast<int>(flags.steps);
  // What its ranks kept when they were asked last: they keep nothing beyond their end.
  std::optional<JobTrace> before;
  while (true) {
    auto trace = Collect(client, flags.job, steps);
    const bool over = std::chrono::steady_clock::now() >= until;
    if (trace.ok()) {
      const bool enough = trace->complete && trace->steps >= steps;
      if (over || enough || !trace->may_grow) return trace;
      if (!before || !HasLost(*trace, *before)) before = *std::move(trace);
    } else if (absl::IsFailedPrecondition(trace.status())) {
      // A job that is about to run has no record yet.
      const auto now = client.Get(flags.job);
      if (!now.ok()) return now.status();
      if (HasEnded(now->job().state())) return TraceOfEnded(now->job(), std::move(before), steps);
      if (over) return trace.status();
    } else {
      return trace;
    }
    std::this_thread::sleep_for(kAskAgain);
  }
}

int Run(const TraceFlags& flags) {
  const auto patience = ParseDuration(flags.wait);
  if (!patience.ok()) return Fail(Annotate(patience.status(), "--wait"));
  const auto client = ConnectTo(flags.coordinator, flags.job);
  if (!client.ok()) return Fail(client.status());
  const auto trace = CollectEnough(**client, flags, *patience);
  if (!trace.ok()) return Fail(trace.status());
  for (const std::string& note : trace->notes) Say(note);
  if (trace->steps == 0 && trace->collectives == 0) {
    return Fail(absl::UnavailableError(
        "there is nothing to trace: its ranks have reported no two steps (meshrun.report) and have "
        "no process group on ucx"));
  }
  const std::string summary =
      fmt::format("{} of {}, {}; clocks compared to within {:.2g} ms",
                  trace->steps == 0 ? "what is kept" : trace->shown, Count(trace->ranks, "rank"),
                  Count(trace->collectives, "collective"), trace->clock_error_seconds * 1e3);
  if (flags.file == "-") {
    fmt::print("{}", trace->json);
    Say(summary);
    return kExitOk;
  }
  const std::string file = flags.file.empty() ? flags.job + ".trace.json" : flags.file;
  if (const absl::Status written = os::WriteFileAtomically(file, trace->json); !written.ok()) {
    return Fail(written);
  }
  fmt::print("{}: {}\nopen it with ui.perfetto.dev or chrome://tracing\n", file, summary);
  return kExitOk;
}

}  // namespace

void AddTrace(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<TraceFlags>();
  FlagSet flags = root.Command(
      "trace",
      "Writes what all ranks of a job did in their last steps, as one Chrome trace\n\n"
      "Steps, collectives with bytes and group, and the events of the job, on one time axis: hosts "
      "compare their clocks\n"
      "with the coordinator's by heartbeats. Ranks keep their last 1024 collectives of each group "
      "and the times of their\n"
      "last 256 steps at any time: the training is not slowed, and goes on.");
  flags.Examples(
      "  meshrun trace geoid-k3x9w2 --steps 5            writes geoid-k3x9w2.trace.json\n"
      "  meshrun trace geoid-k3x9w2 --to - | gzip > trace.json.gz");
  flags.ListUnder("Look");
  flags.Argument("JOB", &values->job, /*required=*/true, "Job; the start of its id is enough");
  flags.Number("--steps", &values->steps, "The last so many steps", 1, 255);
  flags.Text("--to", &values->file, "FILE", "Where to; -: standard output");
  flags.Text("--wait", &values->wait, "TIME",
             "How long to wait for so many steps (default 30s); 0s: of a job that reports none");
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
