// meshrun events and meshrun why: what happened, and what led to it.
#include <fmt/format.h>

#include <memory>

#include "client/cli/context.h"
#include "client/cli/submission.h"
#include "client/render/causes.h"
#include "core/exit_codes.h"

namespace meshrun::client {
namespace {

struct EventsFlags {
  CoordinatorFlags coordinator;
  std::string output;
  std::string job;
  std::string node;
};

int ShowEvents(const EventsFlags& flags) {
  const auto client = ConnectTo(flags.coordinator, flags.job);
  if (!client.ok()) return Fail(client.status());
  v1::ListEventsRequest request;
  request.set_job_id(flags.job);
  request.set_node(flags.node);
  const auto events = (*client)->ListEvents(request);
  if (!events.ok()) return Fail(events.status());
  if (flags.output == "json") {
    v1::ListEventsResponse response;
    for (const v1::ClusterEvent& event : *events) *response.add_events() = event;
    fmt::print("{}", ToJson(response));
  } else if (events->empty()) {
    Say("no event is known any more");
  } else {
    fmt::print("{}", EventTable(*events, WallNow(), TableWidth(StyleOf(1))));
  }
  return kExitOk;
}

struct WhyFlags {
  CoordinatorFlags coordinator;
  std::string output;
  std::string job;
  bool all = false;
};

int ShowWhy(const WhyFlags& flags) {
  const auto client = ConnectTo(flags.coordinator, flags.job);
  if (!client.ok()) return Fail(client.status());
  const auto job = FindJob(**client, flags.job);
  if (!job.ok()) return Fail(job.status());
  fmt::print("{}", flags.output == "json" ? ToJson(*job)
                                          : DescribeWhy(*job, WallNow(), StyleOf(1), flags.all));
  return kExitOk;
}

}  // namespace

void AddEvents(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<EventsFlags>();
  FlagSet flags = root.Command("events",
                               "Lists what happened to a job, on a node, or at all\n\n"
                               "Each event names the one that led to it. Events of a job are kept "
                               "beyond the job itself, the last\n10000 in all.");
  flags.Examples(
      "  meshrun events geoid-k3x9w2      a job; the start of its id is enough\n"
      "  meshrun events --node node-a     a node\n"
      "  meshrun events -o json | jq '.events[] | select(.kind == \"NodeLost\")'");
  flags.ListUnder("Look");
  flags.Argument("JOB", &values->job, /*required=*/false, "Only this job's");
  flags.Text("--node", &values->node, "NODE", "Only this node's");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return ShowEvents(*values); }});
}

void AddWhy(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<WhyFlags>();
  FlagSet flags = root.Command("why",
                               "Tells why a job waits, stopped or failed\n\n"
                               "The first cause, its consequences, and what was done about it.");
  flags.Examples(
      "  meshrun why geoid-k3x9w2         the last trouble of a job\n"
      "  meshrun why --all geoid-k3x9w2   all of them");
  flags.ListUnder("Look");
  flags.Argument("JOB", &values->job, /*required=*/true, "Job; the start of its id is enough");
  flags.Switch("-a,--all", &values->all, "Also what went wrong before");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return ShowWhy(*values); }});
}

}  // namespace meshrun::client
