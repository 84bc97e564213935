// meshrun logs: what the ranks of a job wrote.
#include <fmt/format.h>

#include <charconv>
#include <memory>

#include "client/cli/context.h"
#include "client/cli/show_logs.h"
#include "client/cli/submission.h"
#include "core/os/process.h"

namespace meshrun::client {
namespace {

struct LogsFlags {
  CoordinatorFlags coordinator;
  std::string job;
  std::string ranks;
  std::string stream;
  std::string output;
  bool follow = false;
  std::string tail;
  uint32_t generation = 0;
};

int Run(const LogsFlags& flags) {
  LogQuery query;
  query.follow = flags.follow;
  if (!flags.tail.empty()) {
    int64_t lines = 0;
    const char* const end = flags.tail.data() + flags.tail.size();
    const auto parsed = std::from_chars(flags.tail.data(), end, lines);
    if (parsed.ec != std::errc{} || parsed.ptr != end || lines < 0) {
      return Fail(absl::InvalidArgumentError(
          fmt::format("--tail {}: write a number of lines, for example --tail 50", flags.tail)));
    }
    query.tail_lines = lines;
  }
  query.generation = flags.generation;
  const auto ranks = ParseRanksFlag(flags.ranks);
  if (!ranks.ok()) return Fail(ranks.status());
  query.ranks = *ranks;
  if (flags.stream == "stdout") query.streams = {v1::LOG_STREAM_STDOUT};
  if (flags.stream == "stderr") query.streams = {v1::LOG_STREAM_STDERR};
  os::BlockTerminationSignals();
  const auto client = ConnectTo(flags.coordinator, flags.job);
  if (!client.ok()) return Fail(client.status());
  const auto job = FindJob(**client, flags.job);
  if (!job.ok()) return Fail(job.status());
  query.job_id = job->job().job_id();
  return ShowLogs(**client, query, static_cast<int>(job->job().world_size()),
                  flags.output == "json");
}

}  // namespace

void AddLogs(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<LogsFlags>();
  FlagSet flags = root.Command("logs",
                               "Shows what the ranks of a job wrote\n\n"
                               "Each line has its rank in front; a single rank is shown as it "
                               "wrote. Their stdout goes to stdout,\n"
                               "their stderr to stderr. With -f the exit code is the job's. With "
                               "-o json each line is an object\n"
                               "of its own on stdout (docs/scripting.md).");
  flags.Examples(
      "  meshrun logs geoid-k3x9w2                      all ranks\n"
      "  meshrun logs -f geoid-k3x9w2 --ranks 0,4-7     go on as they write\n"
      "  meshrun logs geoid-k3x9w2 --ranks 3 --stream stderr --tail 50\n"
      "  meshrun logs geoid-k3x9w2 --generation 1       before its last restart\n"
      "  meshrun logs -f -o json geoid-k3x9w2 | jq -r 'select(.rank == 0) | .text'");
  flags.ListUnder("Look");
  flags.Argument("JOB", &values->job, /*required=*/true, "Job; the start of its id is enough");
  flags.Switch("-f,--follow", &values->follow,
               "Go on until the job has ended, and end with its exit code");
  flags.Text("--ranks", &values->ranks, "RANKS", "Only these, for example 0,4-7");
  flags.Text("--tail", &values->tail, "N",
             "Begin with the last so many lines of each rank; 0: only what comes from now on");
  flags.Choice("--stream", &values->stream, {"stdout", "stderr"}, "Only one of the two");
  flags.Number("--generation", &values->generation,
               "Of an earlier generation (default: the latest)");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
