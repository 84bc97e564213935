// meshrun wait: returns when jobs have ended, with what became of them as the exit code.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>

#include "client/cli/context.h"
#include "client/cli/submission.h"
#include "client/render/report.h"
#include "core/exit_codes.h"
#include "core/status.h"
#include "core/text.h"

namespace meshrun::client {
namespace {

struct WaitFlags {
  CoordinatorFlags coordinator;
  std::string output;
  std::string at_most;
  std::vector<std::string> jobs;
};

using Steady = std::chrono::steady_clock;

// `*job` is then as it was last told. DEADLINE_EXCEEDED: it has not ended by then.
absl::Status WaitForOne(Client& client, Steady::time_point deadline, v1::Job* job) {
  std::stop_source stop;
  const std::jthread alarm([&](const std::stop_token& done) {
    std::mutex mu;
    std::condition_variable_any changed;
    std::unique_lock<std::mutex> lock(mu);
    while (!done.stop_requested() && Steady::now() < deadline) {
      // Not up to the deadline at once: time_point::max overflows in a wait.
      changed.wait_until(lock, done, std::min(deadline, Steady::now() + std::chrono::hours(1)),
                         [] { return false; });
    }
    if (!done.stop_requested()) stop.request_stop();
  });
  StreamOptions options;
  options.stop = stop.get_token();
  options.on_interruption = [](const absl::Status& status) {
    Say(fmt::format("{}: trying again for a minute", std::string(status.message())));
  };
  const absl::Status status = client.Watch(
      job->job_id(), [&](const v1::Job& now) { *job = now; }, options);
  return stop.stop_requested() && !HasEnded(job->state())
             ? absl::DeadlineExceededError("the job has not ended")
             : status;
}

int Run(const WaitFlags& flags) {
  Steady::time_point deadline = Steady::time_point::max();
  if (!flags.at_most.empty()) {
    const auto time = ParseDuration(flags.at_most);
    if (!time.ok()) return Fail(Annotate(time.status(), "--at-most"));
    deadline = Steady::now() + *time;
  }
  // Every name is looked up before the first wait: a wrong one is told at once.
  std::vector<v1::Job> jobs;
  std::vector<Client*> clients;
  Connections connections(flags.coordinator);
  for (const std::string& name : flags.jobs) {
    const auto client = connections.To(name);
    if (!client.ok()) return Fail(client.status());
    auto found = FindJobs(**client, name);
    if (!found.ok()) return Fail(found.status());
    for (v1::Job& job : *found) jobs.push_back(std::move(job));
    clients.resize(jobs.size(), *client);
  }
  int worst = kExitOk;
  for (size_t i = 0; i < jobs.size(); ++i) {
    v1::Job& job = jobs[i];
    if (!HasEnded(job.state())) {
      const absl::Status status = WaitForOne(*clients[i], deadline, &job);
      if (absl::IsDeadlineExceeded(status) && Steady::now() >= deadline) {
        Say(fmt::format("{} is {} after {}", job.job_id(), StateName(job.state()), flags.at_most));
        return kExitDeadline;
      }
      if (!status.ok()) return Fail(status);
    }
    worst = std::max(worst, ExitCodeOf(job));
    if (flags.output != "json") {
      Print(fmt::format("{}  {}\n", job.job_id(), StateName(job.state())));
    }
    FlushOutput();
  }
  if (flags.output == "json") {
    v1::ListJobsResponse response;
    response.mutable_jobs()->Add(jobs.begin(), jobs.end());
    Print(ToJson(response));
  }
  return worst;
}

}  // namespace

void AddWait(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<WaitFlags>();
  FlagSet flags = root.Command(
      "wait",
      "Waits until jobs have ended\n\n"
      "Its exit code is the job's, as that of 'meshrun run': 0 ok, 1 failed or cancelled, 2 its "
      "command is wrong,\n75 it did not start in time, 93 a rank asked not to be requeued, 124 its "
      "time limit. Of several jobs: the\nlargest. It survives restarts of the coordinator.");
  flags.Examples(
      "  id=$(meshrun submit -- ./train) && meshrun wait $id\n"
      "  meshrun wait --at-most 1h geoid-k3x9w2 darcy-m4p7\n"
      "  meshrun wait -o json geoid-k3x9w2 | jq '.jobs[0].failure.message'");
  flags.ListUnder("Run jobs");
  flags.Arguments("JOB", &values->jobs, "Jobs; the start of an id is enough");
  flags.Text("--at-most", &values->at_most, "TIME", "Give up after so long, with exit code 124");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
