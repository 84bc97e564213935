// meshrun audit: who asked for which change, and what was refused to whom.
#include <fmt/format.h>

#include <memory>

#include "client/cli/context.h"
#include "client/cli/times.h"
#include "client/render/usage_report.h"
#include "core/exit_codes.h"
#include "core/json/json.h"
#include "core/proto_time.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

struct AuditFlags {
  CoordinatorFlags coordinator;
  std::string output;
  std::string since;
  std::string user;
  bool refused = false;
};

int Run(const AuditFlags& flags) {
  v1::ListAuditRequest request;
  if (!flags.since.empty()) {
    const auto since = ParseTime(flags.since, WallNow());
    if (!since.ok()) return Fail(Annotate(since.status(), "--since"));
    *request.mutable_since() = ToProtoTimestamp(*since);
  }
  request.set_actor(flags.user);
  request.set_refused_only(flags.refused);
  const auto client = ConnectTo(flags.coordinator);
  if (!client.ok()) return Fail(client.status());
  const auto audit = (*client)->ListAudit(request);
  if (!audit.ok()) return Fail(audit.status());
  if (flags.output == "json") {
    Print(ToJson(*audit));
  } else if (audit->records().empty()) {
    Say("there is no record of it");
  } else {
    Print(AuditTable(*audit, TableWidth(StyleOf(1))));
  }
  return kExitOk;
}

}  // namespace

void AddAudit(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<AuditFlags>();
  FlagSet flags = root.Command(
      "audit",
      "Lists who asked for which change, and what was refused to whom\n\n"
      "Oldest first. With TLS it takes the role operate. The coordinator's --audit-file has the "
      "same, a JSON\nobject a line.");
  flags.Examples(
      "  meshrun audit --since 1h\n"
      "  meshrun audit --user ada --refused\n"
      "  meshrun audit -o json | jq -r '.records[] | select(.method == \"DrainNode\") | .actor'");
  flags.ListUnder("Look");
  flags.Text("--since", &values->since, "TIME",
             "Since then: 7d ago, or 2026-11-01, or \"2026-11-01 08:00\" (default: all that is "
             "kept)");
  flags.Text("--user", &values->user, "NAME", "Only what this one asked for");
  flags.Switch("--refused", &values->refused, "Only what was refused");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
