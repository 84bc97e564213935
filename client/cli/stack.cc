// meshrun stack: where the processes of a job's ranks stand.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/context.h"
#include "client/render/stacks.h"
#include "core/exit_codes.h"

namespace meshrun::client {
namespace {

struct StackFlags {
  CoordinatorFlags coordinator;
  std::string output;
  std::string job;
  std::string ranks;
  bool native = false;
};

// A debugger that reads the symbols of LibTorch takes some of it.
constexpr std::chrono::seconds kStacksWait(20);

int Run(const StackFlags& flags) {
  const auto ranks = ParseRanksFlag(flags.ranks);
  if (!ranks.ok()) return Fail(ranks.status());
  const auto client = ConnectTo(flags.coordinator, flags.job);
  if (!client.ok()) return Fail(client.status());
  const auto stacks = (*client)->GetStacks(flags.job, *ranks, flags.native, kStacksWait);
  if (!stacks.ok()) return Fail(stacks.status());
  fmt::print("{}",
             flags.output == "json" ? StacksJson(*stacks) : DescribeStacks(*stacks, StyleOf(1)));
  return kExitOk;
}

}  // namespace

void AddStack(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<StackFlags>();
  FlagSet flags = root.Command(
      "stack",
      "Shows where the ranks of a job stand: functions, files and lines\n\n"
      "The workers look at the rank processes from outside: with py-spy where it is installed, "
      "else "
      "by the handler\n"
      "that 'import meshrun' registers in a Python script, and with eu-stack or gdb for other "
      "programs. A rank\n"
      "stands still for the moment in which its frames are read.");
  flags.Examples(
      "  meshrun stack geoid-k3x9w2              all ranks of a job that runs\n"
      "  meshrun stack geoid-k3x9w2 --ranks 0,3 --native");
  flags.ListUnder("Look");
  flags.Argument("JOB", &values->job, /*required=*/true, "Job; the start of its id is enough");
  flags.Text("--ranks", &values->ranks, "RANKS", "Only these, for example 0,4-7");
  flags.Switch("--native", &values->native, "Of Python ranks the frames of machine code too");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
