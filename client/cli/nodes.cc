// meshrun nodes: the hosts of the cluster.
#include <fmt/format.h>

#include <memory>

#include "client/cli/context.h"
#include "client/render/cluster_report.h"
#include "client/render/report.h"
#include "core/exit_codes.h"
#include "meshrun/v1/cluster_service.pb.h"

namespace meshrun::client {
namespace {

struct NodesFlags {
  CoordinatorFlags coordinator;
  std::string output;
};

int Run(const NodesFlags& flags) {
  const auto client = ConnectTo(flags.coordinator);
  if (!client.ok()) return Fail(client.status());
  const auto nodes = (*client)->ListNodes();
  if (!nodes.ok()) return Fail(nodes.status());
  if (flags.output == "json") {
    v1::ListNodesResponse response;
    for (const v1::Node& node : *nodes) *response.add_nodes() = node;
    fmt::print("{}", ToJson(response));
  } else if (nodes->empty()) {
    Say(
        fmt::format("no worker has registered yet: start one on each host with 'meshrun-worker "
                    "--coordinator {}'",
                    (*client)->address()));
  } else {
    fmt::print("{}", NodeTable(*nodes, WallNow(), TableWidth(StyleOf(1))));
  }
  return kExitOk;
}

}  // namespace

void AddNodes(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<NodesFlags>();
  FlagSet flags = root.Command("nodes",
                               "Lists the hosts of the cluster\n\n"
                               "SLOTS and GPUS are in use / there.");
  flags.Examples(
      "  meshrun nodes\n"
      "  meshrun nodes -o json | jq '.nodes[].name'");
  flags.ListUnder("Look");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
