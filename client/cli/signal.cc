// meshrun signal: a signal to the ranks of a job.
#include <fmt/format.h>
#include <signal.h>

#include <charconv>
#include <memory>

#include "client/cli/context.h"
#include "client/cli/submission.h"
#include "core/exit_codes.h"
#include "core/os/process.h"
#include "core/signal_name.h"

namespace meshrun::client {
namespace {

struct SignalFlags {
  CoordinatorFlags coordinator;
  std::string output;
  std::string job;
  std::string signal;
  std::string ranks;
};

int Run(const SignalFlags& flags) {
  const auto signal = os::ParseSignal(flags.signal);
  if (!signal.ok()) return Fail(signal.status());
  const auto ranks = ParseRanksFlag(flags.ranks);
  if (!ranks.ok()) return Fail(ranks.status());
  const auto client = ConnectTo(flags.coordinator, flags.job);
  if (!client.ok()) return Fail(client.status());
  const auto found = FindJob(**client, flags.job);
  if (!found.ok()) return Fail(found.status());
  const auto job = (*client)->Signal(found->job().job_id(), *signal, *ranks);
  if (!job.ok()) return Fail(job.status());
  if (flags.output == "json") {
    fmt::print("{}", ToJson(*job));
  } else {
    fmt::print("{}  {} sent\n", job->job_id(), SignalName(*signal));
  }
  return kExitOk;
}

}  // namespace

void AddSignal(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<SignalFlags>();
  FlagSet flags = root.Command(
      "signal",
      "Sends a signal to the ranks of a job\n\n"
      "To the rank processes themselves, not to what they have started. A rank without "
      "a handler for it may end.");
  flags.Examples(
      "  meshrun signal geoid-k3x9w2 USR1             for example: save a checkpoint\n"
      "  meshrun signal geoid-k3x9w2 USR1 --ranks 0");
  flags.ListUnder("Run jobs");
  flags.Argument("JOB", &values->job, /*required=*/true, "Job; the start of its id is enough");
  flags.Argument("SIGNAL", &values->signal, /*required=*/true, "USR1, SIGUSR1 or 10");
  flags.Text("--ranks", &values->ranks, "RANKS", "Only these, for example 0,4-7");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
