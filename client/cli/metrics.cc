// meshrun metrics: what a job has reported, point by point.
#include <fmt/format.h>

#include <memory>

#include "client/cli/context.h"
#include "client/render/curve_report.h"
#include "core/exit_codes.h"
#include "core/proto_time.h"

namespace meshrun::client {
namespace {

struct MetricsFlags {
  CoordinatorFlags coordinator;
  std::string output;
  std::string job;
  bool csv = false;
};

int Run(const MetricsFlags& flags) {
  const auto client = ConnectTo(flags.coordinator, flags.job);
  if (!client.ok()) return Fail(client.status());
  const auto answer = (*client)->Get(flags.job);
  if (!answer.ok()) return Fail(answer.status());
  const CurvePoints& curve = answer->curve();
  // One of an earlier version, or a reader's that may not ask: the points themselves are there.
  const auto cluster = (*client)->DescribeCluster();
  const WallNanos leads_since = cluster.ok() ? FromProto(cluster->started_at()) : WallNanos::min();
  if (const std::string missing = MissingPoints(answer->job(), curve, leads_since);
      !missing.empty()) {
    Say(missing);
  }
  if (const std::string left_out = MetricsLeftOut(answer->job(), curve); !left_out.empty()) {
    Say(left_out);
  }
  if (flags.output == "json") {
    v1::GetJobResponse points;
    *points.mutable_curve() = curve;
    fmt::print("{}", ToJson(points));
  } else if (flags.csv) {
    fmt::print("{}", CurveCsv(curve));
  } else if (!curve.empty()) {
    fmt::print("{}", CurveTable(curve, TableWidth(StyleOf(1))));
  }
  return kExitOk;
}

}  // namespace

void AddMetrics(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<MetricsFlags>();
  FlagSet flags = root.Command(
      "metrics",
      "Shows the points of a job's curve: step, loss and metrics\n\n"
      "The coordinator keeps at most 256 points of the lowest rank that reports, spread over the "
      "whole run, of the\n"
      "first eight metrics, until it is started again. Files with every report: --tensorboard of "
      "'meshrun run' and 'submit'.");
  flags.Examples(
      "  meshrun metrics geoid-k3x9w2                   a table; the start of the id is enough\n"
      "  meshrun metrics geoid-k3x9w2 --csv > geoid.csv");
  flags.ListUnder("Look");
  flags.Argument("JOB", &values->job, /*required=*/true, "Job; the start of its id is enough");
  flags.Switch("--csv", &values->csv, "Comma-separated values, with all digits");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
