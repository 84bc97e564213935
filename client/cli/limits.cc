// meshrun limits: what the policy allows, and what one has of it.
#include <fmt/format.h>

#include <memory>

#include "client/cli/context.h"
#include "client/render/limits_report.h"
#include "client/render/report.h"
#include "core/exit_codes.h"
#include "meshrun/v1/cluster_service.pb.h"

namespace meshrun::client {
namespace {

struct LimitsFlags {
  CoordinatorFlags coordinator;
  std::string output;
  std::string user;
};

int Run(const LimitsFlags& flags) {
  const auto client = ConnectTo(flags.coordinator);
  if (!client.ok()) return Fail(client.status());
  const auto limits = (*client)->DescribeLimits(flags.user);
  if (!limits.ok()) return Fail(limits.status());
  fmt::print("{}", flags.output == "json" ? ToJson(*limits)
                                          : LimitsReport(*limits, TableWidth(StyleOf(1))));
  return kExitOk;
}

}  // namespace

void AddLimits(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<LimitsFlags>();
  FlagSet flags = root.Command(
      "limits",
      "Shows what you may have, and what you have\n\n"
      "The limits are of the coordinator's --policy. Each job counts for its user, its account and "
      "its\npartition, and the limits of all three hold.");
  flags.Examples(
      "  meshrun limits\n"
      "  meshrun limits --user ada -o json");
  flags.ListUnder("Look");
  flags.Text("--user", &values->user, "NAME", "Of this user (default: yourself)");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
