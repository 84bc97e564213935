// meshrun describe: all that the coordinator knows of a job, a node, or itself.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <string>

#include "client/cli/context.h"
#include "client/cli/submission.h"
#include "client/render/cluster_report.h"
#include "client/render/flight_records.h"
#include "client/render/report.h"
#include "core/exit_codes.h"

namespace meshrun::client {
namespace {

struct DescribeFlags {
  CoordinatorFlags coordinator;
  std::string output;
  std::string name;
  uint32_t events = 0;
  bool flight_recorder = false;
};

// Ranks that do not answer are named after it.
constexpr std::chrono::seconds kFlightRecordsWait(5);

int DescribeFlights(Client& client, const std::string& name, bool json) {
  if (name.empty()) {
    return Fail(absl::InvalidArgumentError(
        "--flight-recorder is of a job: 'meshrun describe --flight-recorder JOB'"));
  }
  const auto records = client.GetFlightRecords(name, kFlightRecordsWait);
  if (!records.ok()) return Fail(records.status());
  fmt::print("{}", json ? FlightRecordsJson(*records) : DescribeFlightRecords(*records));
  return kExitOk;
}

int Run(const DescribeFlags& flags) {
  const bool json = flags.output == "json";
  const auto client = ConnectTo(flags.coordinator, flags.name);
  if (!client.ok()) return Fail(client.status());
  if (flags.flight_recorder) return DescribeFlights(**client, flags.name, json);
  if (flags.name.empty()) {
    const auto cluster = (*client)->DescribeCluster(flags.events);
    if (!cluster.ok()) return Fail(cluster.status());
    fmt::print("{}", json ? ToJson(*cluster)
                          : DescribeCluster(*cluster, (*client)->address(), WallNow(),
                                            TableWidth(StyleOf(1))));
    return kExitOk;
  }
  const auto job = FindJob(**client, flags.name);
  if (job.ok()) {
    fmt::print("{}", json ? ToJson(*job) : DescribeJob(*job, WallNow(), StyleOf(1)));
    return kExitOk;
  }
  if (absl::IsNotFound(job.status())) {
    const auto nodes = (*client)->ListNodes();
    for (const v1::Node& node : nodes.value_or(std::vector<v1::Node>())) {
      if (node.name() != flags.name && node.node_id() != flags.name) continue;
      fmt::print("{}", json ? ToJson(node) : DescribeNode(node, WallNow()));
      return kExitOk;
    }
  }
  return Fail(job.status());
}

}  // namespace

void AddDescribe(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<DescribeFlags>();
  FlagSet flags = root.Command("describe",
                               "Tells all about a job, a node or the cluster\n\n"
                               "Of a job: where each rank runs, how it ended, who failed first, "
                               "groups, and what happened in order.");
  flags.Examples(
      "  meshrun describe geoid-k3x9w2    a job; the start of its id is enough\n"
      "  meshrun describe node-a          a node\n"
      "  meshrun describe --flight-recorder geoid    what its ranks' collectives are doing\n"
      "  meshrun describe                 the coordinator and its latest events");
  flags.ListUnder("Look");
  flags.Argument("JOB", &values->name, /*required=*/false, "Job or node; none: the cluster");
  flags.Number("--events", &values->events, "Latest events of the cluster (default 50)");
  flags.Switch("--flight-recorder", &values->flight_recorder,
               "Of a job that runs: the last collectives of each rank and group");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
