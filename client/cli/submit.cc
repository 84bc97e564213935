// meshrun submit: a job to the coordinator.
#include <fmt/format.h>

#include <csignal>
#include <memory>

#include "client/cli/context.h"
#include "client/cli/follow.h"
#include "client/cli/job_flags.h"
#include "client/cli/submission.h"
#include "client/job_file.h"
#include "client/render/report.h"
#include "core/exit_codes.h"
#include "core/os/process.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

struct SubmitFlags {
  CoordinatorFlags coordinator;
  JobFlags job;
  std::string file;
  std::string output;
  std::string request_id;
  bool follow = false;
  bool must_fit = false;
  std::vector<std::string> ignored;
  std::vector<std::string> command;
};

int Run(const SubmitFlags& flags) {
  const bool json = flags.output == "json";
  // Before any thread starts: Ctrl-C must reach the follower, and not end this process.
  const auto signals = HandlingOf(flags.job.handled_signals);
  if (!signals.ok()) return Fail(signals.status());
  if (flags.follow) os::BlockSignals(signals->Set());
  v1::JobSpec spec;
  if (!flags.file.empty()) {
    auto read = ReadJobFile(flags.file);
    if (!read.ok()) return Fail(read.status());
    spec = *std::move(read);
  }
  const JobContext context = RealJobContext();
  if (const absl::Status status = ApplyJobFlags(flags.job, flags.command, context, &spec);
      !status.ok()) {
    return Fail(flags.file.empty() ? status : Annotate(status, flags.file));
  }
  PassVirtualEnv(context, &spec);
  if (flags.follow && spec.has_array()) {
    return Fail(absl::InvalidArgumentError(
        "--follow shows one job, and --array makes several: leave one of the two out, and write "
        "'meshrun wait ID' to wait for all of them"));
  }
  for (const std::string& name : flags.ignored) Say(fmt::format("{} has no effect here", name));
  const auto client = ConnectTo(flags.coordinator);
  if (!client.ok()) return Fail(client.status());
  std::string too_big;
  const auto job = Submit(**client, spec, flags.must_fit, flags.request_id, &too_big);
  if (!job.ok()) return Fail(job.status());
  if (flags.follow) {
    Say(fmt::format(
        "submitted {}{}", job->job_id(),
        too_big.empty() ? "" : ", which the present nodes cannot run: it waits for others"));
    FollowOptions follow;
    follow.json = json;
    follow.signals = *signals;
    return Follow(**client, *job, follow);
  }
  // A reader that has gone must not end this process before the id is told.
  std::signal(SIGPIPE, SIG_IGN);
  // Without JSON the id alone, for $(meshrun submit ...): of an array, that of all its jobs.
  const std::string id = job->array_id().empty() ? job->job_id() : job->array_id();
  Print(json ? ToJson(*job) : id + "\n");
  if (FlushOutput() != 0) Say(fmt::format("submitted {}", id));
  if (json) return kExitOk;
  if (!too_big.empty()) {
    Say(
        fmt::format("{} is {}: the present nodes cannot run it, and it waits for others: {}; "
                    "--must-fit would refuse it",
                    job->job_id(), StateName(job->state()), too_big));
  } else if (!job->reason().empty()) {
    Say(fmt::format("{} is {}: {}", job->job_id(), StateName(job->state()), job->reason()));
  }
  return kExitOk;
}

}  // namespace

void AddSubmit(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<SubmitFlags>();
  FlagSet flags = root.Command("submit",
                               "Submits a job to the coordinator\n\n"
                               "The job is described by flags, by a file, or by a file with flags "
                               "that win over it. It waits until the\n"
                               "cluster has room for all of its ranks at once. Prints its id,\n"
                               "alone on stdout.");
  flags.Examples(
      "  meshrun submit --nodes 2 --procs-per-node 4 -- ./train --steps 1000\n"
      "  meshrun submit --nodes 1:4 --nproc gpu --max-restarts 3 --follow train.py\n"
      "  meshrun submit --follow --nodes 2 --job geoid -- --steps 3000\n"
      "  meshrun submit -f job.yaml --priority 5\n"
      "  id=$(meshrun submit -- ./train) && meshrun wait $id\n"
      "  meshrun submit --array 0-99%10 -- ./sweep   a hundred jobs, ten at a time\n"
      "\n"
      "job.yaml:\n"
      "  name: train\n"
      "  command: ./train --steps 1000        # or a list of words\n"
      "  nodes: \"1:4\"                         # at least, at most\n"
      "  procs_per_node: gpu                  # or cpu, or a number\n"
      "  mesh: {dp: -1, spatial: 2}\n"
      "  memory: 4G\n"
      "  env: {OMP_NUM_THREADS: 2}\n"
      "  kill_grace: 10s");
  flags.ListUnder("Run jobs");
  flags.TakesCommand();
  AddJobFlags(flags, &values->job);
  flags.Section("What runs");
  flags.Text("-f,--file", &values->file, "FILE",
             "Read the job from a YAML file; - is standard input");
  flags.Section("What each rank needs");
  flags.Text("--export", &values->job.exported, "ALL|NONE|A,B=c",
             "Of your environment: all, nothing (default), or these; a rank also has its worker's");
  flags.Section("Flags");
  flags.Switch("--follow", &values->follow,
               "Show its output and progress until it ends; Ctrl-C cancels it");
  flags.Switch("--must-fit", &values->must_fit,
               "Refuse a job that the present nodes could never run");
  flags.Text("--request-id", &values->request_id, "ID",
             "Of a call whose answer did not come: it never makes two jobs");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  AddIgnoredTorchrunFlags(flags, &values->ignored);
  commands->push_back({flags.app(), [values] { return Run(*values); }, &values->command});
}

}  // namespace meshrun::client
