#include "client/render/limits_report.h"

#include <fmt/format.h>

#include <utility>

#include "client/render/table.h"
#include "core/proto_time.h"
#include "core/text.h"

namespace meshrun::client {
namespace {

std::string Time(bool is_limited, const google::protobuf::Duration& most) {
  return is_limited ? FormatDuration(FromProto(most)) : "-";
}

std::string Number(bool is_limited, uint64_t most) {
  return is_limited ? fmt::to_string(most) : "-";
}

// "3 of 10", or what there is.
std::string Used(uint32_t used, bool is_limited, uint32_t most) {
  return is_limited ? fmt::format("{} of {}", used, most) : fmt::to_string(used);
}

std::string Name(const v1::LimitScope& scope) {
  switch (scope.kind()) {
    case v1::LimitScope::KIND_ACCOUNT:
      return "account " + scope.name();
    case v1::LimitScope::KIND_PARTITION:
      return "partition " + scope.name();
    case v1::LimitScope::KIND_ARRAY:
      return "array " + scope.name();
    default:
      return scope.name().empty() ? "you" : "user " + scope.name();
  }
}

}  // namespace

std::string LimitsReport(const v1::DescribeLimitsResponse& limits, int width) {
  Table used({"OF", ">QUEUED", ">RUNNING", ">RANKS", ">GPUS"});
  Table of_a_job({"A JOB OF", ">RANKS", ">TIME", ">GRACE", ">RESTARTS", ">LOGS"});
  for (const v1::LimitScope& scope : limits.scopes()) {
    const v1::UserLimits& l = scope.limits();
    used.Add({Name(scope), Used(scope.queued_jobs(), l.has_queued_jobs(), l.queued_jobs()),
              Used(scope.running_jobs(), l.has_running_jobs(), l.running_jobs()),
              Used(scope.running_ranks(), l.has_running_ranks(), l.running_ranks()),
              Used(scope.running_gpus(), l.has_running_gpus(), l.running_gpus())});
    of_a_job.Add(
        {Name(scope), Number(l.has_ranks(), l.ranks()), Time(l.has_time_limit(), l.time_limit()),
         Time(l.has_kill_grace(), l.kill_grace()), Number(l.has_max_restarts(), l.max_restarts()),
         l.has_log_bytes() ? FormatBytes(l.log_bytes()) : "-"});
  }
  std::string out = used.Render(0, width) + "\n" + of_a_job.Render(0, width);
  for (const auto& [what, name] : {std::pair("account", limits.default_account()),
                                   std::pair("partition", limits.default_partition())}) {
    if (!name.empty()) out += fmt::format("\na job that names no {} is of {}", what, name);
  }
  if (out.back() != '\n') out += '\n';
  return out;
}

}  // namespace meshrun::client
