// meshrun drain, undrain, node rm: what people decide about hosts.
#include <fmt/format.h>

#include <memory>

#include "client/cli/context.h"
#include "client/render/cluster_report.h"
#include "core/exit_codes.h"
#include "core/proto_time.h"
#include "core/status.h"
#include "core/text.h"

namespace meshrun::client {
namespace {

struct NodeFlags {
  CoordinatorFlags coordinator;
  std::string output;
  std::string node;
  std::string reason;
  std::string deadline;
  bool now = false;
  bool gone = false;
};

int Print(const NodeFlags& flags, const v1::Node& node, std::string_view what) {
  if (flags.output == "json") {
    fmt::print("{}", ToJson(node));
  } else {
    fmt::print("{}  {}\n", node.name(), what);
  }
  return kExitOk;
}

int Drain(const NodeFlags& flags) {
  v1::DrainNodeRequest request;
  request.set_node(flags.node);
  request.set_reason(flags.reason);
  if (flags.now && !flags.deadline.empty()) {
    return Fail(absl::InvalidArgumentError("--now and --deadline exclude each other"));
  }
  if (flags.now) request.mutable_deadline();
  if (!flags.deadline.empty()) {
    const auto deadline = ParseDuration(flags.deadline);
    if (!deadline.ok()) return Fail(Annotate(deadline.status(), "--deadline"));
    *request.mutable_deadline() = ToProtoDuration(*deadline);
  }
  const auto client = ConnectTo(flags.coordinator);
  if (!client.ok()) return Fail(client.status());
  const auto response = (*client)->DrainNode(request);
  if (!response.ok()) return Fail(response.status());
  if (flags.output == "json") {
    fmt::print("{}", ToJson(*response));
    return kExitOk;
  }
  fmt::print("{}  {}\n", response->node().name(), NodeStateText(response->node()));
  for (const std::string& job : response->moving()) {
    fmt::print("  {} is moved {}\n", job, flags.now ? "now" : "in " + flags.deadline);
  }
  for (const std::string& job : response->staying()) {
    fmt::print("  {} stays until it ends: it has no --max-restarts\n", job);
  }
  return kExitOk;
}

int Undrain(const NodeFlags& flags) {
  const auto client = ConnectTo(flags.coordinator);
  if (!client.ok()) return Fail(client.status());
  const auto node = (*client)->UndrainNode(flags.node);
  return node.ok() ? Print(flags, *node, NodeStateText(*node)) : Fail(node.status());
}

int Remove(const NodeFlags& flags) {
  const auto client = ConnectTo(flags.coordinator);
  if (!client.ok()) return Fail(client.status());
  const auto node = (*client)->RemoveNode(flags.node, flags.gone);
  return node.ok() ? Print(flags, *node, "forgotten") : Fail(node.status());
}

void AddCommon(FlagSet& flags, NodeFlags* values) {
  flags.Argument("NODE", &values->node, /*required=*/true, "Name or id of a node");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
}

}  // namespace

void AddNode(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<NodeFlags>();
  FlagSet drain = root.Command(
      "drain",
      "Places nothing new on a node, until 'meshrun undrain'\n\n"
      "Its ranks go on. With --now or --deadline the jobs there that have --max-restarts are "
      "stopped, with their\n--kill-grace to save a checkpoint, and go on elsewhere, at no charge.");
  drain.Examples(
      "  meshrun drain node-a --reason 'a fan'     wait until its jobs have ended\n"
      "  meshrun drain node-a --deadline 1h        and move those that are left after an hour\n"
      "  meshrun drain node-a --now");
  drain.ListUnder("Hosts");
  drain.Text("--reason", &values->reason, "TEXT", "Said by 'meshrun nodes'");
  drain.Text("--deadline", &values->deadline, "TIME", "Then move its jobs");
  drain.Switch("--now", &values->now, "Move its jobs now");
  AddCommon(drain, values.get());
  FlagSet undrain = root.Command("undrain", "Places jobs on a drained node again");
  undrain.ListUnder("Hosts");
  AddCommon(undrain, values.get());
  FlagSet node = root.Command("node", "Commands for single hosts");
  node.ListUnder("Hosts");
  FlagSet remove =
      node.Command("rm",
                   "Forgets a lost node\n\n"
                   "The coordinator does it by itself after its --keep-lost-nodes. "
                   "Where ranks of a job may still\ncompute there, it refuses until the "
                   "host's fence time is over.");
  remove.ListUnder("Commands");
  remove.Switch("--gone", &values->gone,
                "The host is switched off, or cut off for good: wait for no fence time");
  AddCommon(remove, values.get());
  commands->push_back({drain.app(), [values] { return Drain(*values); }});
  commands->push_back({undrain.app(), [values] { return Undrain(*values); }});
  commands->push_back({remove.app(), [values] { return Remove(*values); }});
}

}  // namespace meshrun::client
