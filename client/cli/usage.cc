// meshrun usage: what jobs that have ended have used.
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

struct UsageFlags {
  CoordinatorFlags coordinator;
  std::string output = "table";
  std::string by = "user";
  std::string since = "30d";
  std::string until;
  std::string user;
  std::string account;
};

int Run(const UsageFlags& flags) {
  v1::ListUsageRequest request;
  const auto since = ParseTime(flags.since, WallNow());
  if (!since.ok()) return Fail(Annotate(since.status(), "--since"));
  *request.mutable_since() = ToProtoTimestamp(*since);
  if (!flags.until.empty()) {
    const auto until = ParseTime(flags.until, WallNow());
    if (!until.ok()) return Fail(Annotate(until.status(), "--until"));
    *request.mutable_until() = ToProtoTimestamp(*until);
  }
  request.set_user(flags.user);
  request.set_account(flags.account);
  const auto client = ConnectTo(flags.coordinator);
  if (!client.ok()) return Fail(client.status());
  const auto usage = (*client)->ListUsage(request);
  if (!usage.ok()) return Fail(usage.status());
  if (usage->has_complete_since() && FromProto(usage->complete_since()) > *since) {
    Say(fmt::format(
        "jobs that ended before {} may be missing: the coordinator keeps so many of the "
        "newest (--keep-usage)",
        AbsoluteTime(FromProto(usage->complete_since()))));
  }
  if (flags.output == "json") {
    Print(ToJson(*usage));
  } else if (flags.output == "csv") {
    Print(UsageCsv(*usage));
  } else if (usage->records().empty()) {
    Say("no job has ended in that time");
  } else if (flags.by == "job") {
    Print(UsageOfJobs(*usage, TableWidth(StyleOf(1))));
  } else {
    Print(UsageSums(*usage, flags.by, TableWidth(StyleOf(1))));
  }
  return kExitOk;
}

}  // namespace

void AddUsage(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<UsageFlags>();
  FlagSet flags = root.Command(
      "usage",
      "Shows what jobs that have ended have used\n\n"
      "A job counts when it ends, with the CPU slots and GPUs that it held, times the time for "
      "which it held\nthem. The records outlive the jobs.");
  flags.Examples(
      "  meshrun usage --since 7d                       hours of each user\n"
      "  meshrun usage --since 2026-11-01 --by account\n"
      "  meshrun usage --by job --user ada\n"
      "  meshrun usage --since 2026-11-01 --until 2026-12-01 -o csv > november.csv");
  flags.ListUnder("Look");
  flags.Text("--since", &values->since, "TIME",
             "Jobs that ended since then: 7d ago, or 2026-11-01, or \"2026-11-01 08:00\" (default "
             "30d)");
  flags.Text("--until", &values->until, "TIME", "And before then (default: now)");
  flags.Choice("--by", &values->by, {"user", "account", "partition", "job"},
               "What a line stands for (default user)");
  flags.Text("--user", &values->user, "NAME", "Only this user's");
  flags.Text("--account", &values->account, "NAME", "Only this account's");
  flags.Choice("-o,--output", &values->output, {"table", "json", "csv"},
               "How to print it; csv and json have a line for each job (default table)");
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
