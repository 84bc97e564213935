// meshrun hold, release, priority: the place of jobs in the queue.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "client/cli/context.h"
#include "client/cli/submission.h"
#include "client/render/report.h"
#include "core/exit_codes.h"

namespace meshrun::client {
namespace {

struct UpdateFlags {
  CoordinatorFlags coordinator;
  std::string output;
  std::vector<std::string> jobs;
};

int UpdateNamed(Client& client, v1::UpdateJobRequest request, const std::string& name,
                v1::ListJobsResponse* done) {
  const auto found = FindJobs(client, name);
  if (!found.ok()) return Fail(found.status());
  const bool is_array = found->front().array_id() == name;
  request.set_job_id(is_array ? name : found->front().job_id());
  const auto job = client.Update(request);
  if (!job.ok()) return Fail(job.status());
  const auto after = is_array ? FindJobs(client, name) : std::vector<v1::Job>{*job};
  if (!after.ok()) return Fail(after.status());
  for (const v1::Job& changed : *after) *done->add_jobs() = changed;
  return kExitOk;
}

int Update(const UpdateFlags& flags, const v1::UpdateJobRequest& request) {
  int worst = kExitOk;
  v1::ListJobsResponse done;
  Connections connections(flags.coordinator);
  for (const std::string& name : flags.jobs) {
    const auto client = connections.To(name);
    if (!client.ok()) return Fail(client.status());
    worst = std::max(worst, UpdateNamed(**client, request, name, &done));
  }
  if (flags.output == "json") {
    fmt::print("{}", ToJson(done));
    return worst;
  }
  for (const v1::Job& job : done.jobs()) {
    fmt::print("{}  {}{}{}\n", job.job_id(), StateName(job.state()),
               job.reason().empty() ? "" : ": ", job.reason());
  }
  return worst;
}

void AddHoldOrRelease(FlagSet& root, Commands* commands, bool hold) {
  auto values = std::make_shared<UpdateFlags>();
  FlagSet flags =
      root.Command(hold ? "hold" : "release",
                   hold ? "Keeps jobs in the queue until they are released\n\n"
                          "A job that runs goes on; it is held when it comes back to the queue."
                        : "Lets held jobs go on");
  flags.Examples(hold ? "  meshrun hold geoid-k3x9w2\n"
                        "  meshrun submit --hold -- ./train     held from the start"
                      : "  meshrun release geoid-k3x9w2");
  flags.ListUnder("Run jobs");
  flags.Arguments("JOB", &values->jobs, "Jobs; the start of an id is enough");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values, hold] {
                         v1::UpdateJobRequest request;
                         request.set_hold(hold);
                         return Update(*values, request);
                       }});
}

}  // namespace

void AddQueue(FlagSet& root, Commands* commands) {
  AddHoldOrRelease(root, commands, /*hold=*/true);
  AddHoldOrRelease(root, commands, /*hold=*/false);
  struct PriorityFlags : UpdateFlags {
    std::string priority;
  };
  auto values = std::make_shared<PriorityFlags>();
  FlagSet flags = root.Command("priority",
                               "Changes the priority of jobs\n\n"
                               "Higher runs first. Jobs of lower priority that may be restarted "
                               "make room, at no charge.");
  flags.Examples("  meshrun priority --set 5 geoid-k3x9w2");
  flags.ListUnder("Run jobs");
  flags.Arguments("JOB", &values->jobs, "Jobs; the start of an id is enough");
  flags.Text("--set", &values->priority, "N", "The new priority; 0 is that of a job without one");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] {
                         const std::string& text = values->priority;
                         const char* const end = text.data() + text.size();
                         int32_t priority = 0;
                         const auto parsed = std::from_chars(text.data(), end, priority);
                         if (parsed.ec != std::errc{} || parsed.ptr != end) {
                           return Fail(absl::InvalidArgumentError(
                               fmt::format("--set '{}': write a whole number, for example "
                                           "--set 5",
                                           text)));
                         }
                         v1::UpdateJobRequest request;
                         request.set_priority(priority);
                         return Update(*values, request);
                       }});
}

}  // namespace meshrun::client
