#include "client/render/causes.h"

#include <fmt/format.h>

#include "client/client.h"
#include "client/render/hints.h"
#include "client/render/report.h"
#include "client/render/table.h"
#include "core/proto_time.h"
#include "core/utf8.h"

namespace meshrun::client {
namespace {

using std::chrono::nanoseconds;

// A cause of the job's own, and what came of it.
struct Incident {
  const v1::ClusterEvent* cause = nullptr;
  // Event of a node that led to the cause.
  const v1::ClusterEvent* before = nullptr;
  std::vector<const v1::ClusterEvent*> consequences;
  std::vector<const v1::ClusterEvent*> actions;
};

std::vector<Incident> Incidents(const v1::GetJobResponse& response) {
  std::vector<Incident> incidents;
  const auto find = [&](uint64_t sequence) -> const v1::ClusterEvent* {
    for (const v1::ClusterEvent& event : response.events()) {
      if (event.sequence() == sequence) return &event;
    }
    return nullptr;
  };
  for (const v1::ClusterEvent& event : response.events()) {
    if (event.job_id().empty()) continue;
    if (event.role() == v1::EVENT_ROLE_CAUSE) {
      incidents.push_back({&event, find(event.cause()), {}, {}});
      continue;
    }
    for (Incident& incident : incidents) {
      if (incident.cause->sequence() != event.cause()) continue;
      (event.role() == v1::EVENT_ROLE_CONSEQUENCE ? incident.consequences : incident.actions)
          .push_back(&event);
    }
  }
  return incidents;
}

std::string Line(std::string_view title, const v1::ClusterEvent& event, nanoseconds now) {
  return fmt::format(
      "  {:<13} {:>9}  {}\n", title, Ago(now, FromProto(event.at())),
      event.message().empty() ? event.kind() : OneLine(event.message(), kEventWidth));
}

std::string Describe(const Incident& incident, const v1::Job& job, bool last, nanoseconds now) {
  std::string out;
  if (incident.before != nullptr) out += Line("before it", *incident.before, now);
  out += Line("first cause", *incident.cause, now);
  for (const v1::ClusterEvent* event : incident.consequences) {
    out += Line("consequence", *event, now);
  }
  if (const std::string ranks = last ? Consequences(job) : ""; !ranks.empty()) {
    out += fmt::format("  {:<13} {:>9}  {}\n", "consequences", "", ranks);
  }
  for (const v1::ClusterEvent* event : incident.actions) {
    v1::ClusterEvent shown = *event;
    // The reason stands above.
    if (event->kind() == "JobFailed" && event->message() == incident.cause->message())
      shown.set_message("the job failed");
    out += Line("done", shown, now);
  }
  return out;
}

// Who asked for it.
std::string By(const v1::ClusterEvent& event) {
  return event.actor().empty() ? "" : fmt::format(" (by {})", event.actor());
}

}  // namespace

std::string EventTable(const std::vector<v1::ClusterEvent>& events, nanoseconds now, int width) {
  Table table({">NUMBER", "~WHEN", "EVENT", "~JOB", "~>BECAUSE OF", "WHAT"});
  for (const v1::ClusterEvent& event : events) {
    table.Add({fmt::format("{}", event.sequence()), Ago(now, FromProto(event.at())), event.kind(),
               event.job_id(), event.cause() == 0 ? "" : fmt::format("{}", event.cause()),
               OneLine(event.message() + By(event), kEventWidth)});
  }
  return table.Render(0, width);
}

std::string DescribeWhy(const v1::GetJobResponse& response, nanoseconds now, const Style& style,
                        bool all) {
  const v1::Job& job = response.job();
  std::string out =
      fmt::format("{}  {}{}{}\n", Paint(style, Colour::kBold, job.job_id()), StateName(job.state()),
                  job.reason().empty() ? "" : ": ", EscapeControls(job.reason()));
  if (const std::string slow = SlowRanks(job); !slow.empty()) {
    out += fmt::format("  {:<13} {:>9}  {}\n", "slow", "", slow);
  }
  if (!job.hang().empty() && !HasEnded(job.state())) {
    out += fmt::format("  {:<13} {:>9}  {}\n", "hangs", "", EscapeControls(job.hang()));
  }
  if (const std::string hint = HintFor(job.failure().exit()); !hint.empty()) {
    out += fmt::format("  {:<13} {:>9}  {}\n", "hint", "", hint);
  }
  const std::vector<Incident> incidents = Incidents(response);
  if (incidents.empty()) return out + "  nothing has gone wrong that is still known\n";
  for (size_t i = all ? 0 : incidents.size() - 1; i < incidents.size(); ++i) {
    if (all && i > 0) out += '\n';
    out += Describe(incidents[i], job, i + 1 == incidents.size(), now);
  }
  if (!all && incidents.size() > 1) {
    out +=
        fmt::format("  {} more before: meshrun why --all {}\n", incidents.size() - 1, job.job_id());
  }
  return out;
}

}  // namespace meshrun::client
