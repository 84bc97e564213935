// Submits a command as a job, prints each change of its state, and after its end the last lines of
// its output. Ctrl-C cancels the job. The exit code is that of `meshrun wait`:
// 0 ok, 1 failed or cancelled, 2 a wrong call, 75 no coordinator, 124 its time limit.
//
//   submit_and_watch [FIELD=VALUE]... -- COMMAND [ARGUMENT]...
//   submit_and_watch procs_per_node=2 time_limit=10m -- ./train --steps 100
#include <pthread.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "client/job_client.h"

namespace {

using meshrun::client::JobClient;
using meshrun::client::JobRequest;
using meshrun::client::JobStatus;

constexpr int kLastLines = 5;

int fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  const bool try_again = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  return try_again ? meshrun::kExitTryAgain : meshrun::kExitUsage;
}

// False: the arguments are not those above.
bool parse(int count, char** words, JobRequest* request) {
  int i = 1;
  for (; i < count && std::string(words[i]) != "--"; ++i) {
    const std::string word = words[i];
    const size_t equals = word.find('=');
    if (equals == std::string::npos) return false;
    request->fields.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  for (++i; i < count; ++i) request->command.emplace_back(words[i]);
  return !request->command.empty();
}

void print_change(const JobStatus& job) {
  std::printf("%s %s%s%s\n", job.id.c_str(),
              std::string(meshrun::client::StateName(job.state)).c_str(),
              job.reason.empty() ? "" : ": ", job.reason.c_str());
  std::fflush(stdout);
}

absl::Status print_last_lines(JobClient& client, const std::string& job_id) {
  std::map<std::pair<int, bool>, std::string> output;
  const absl::Status status = client.ReadOutput(
      {.job_id = job_id, .tail_lines = kLastLines}, [&](const meshrun::client::OutputPiece& piece) {
        output[{piece.rank, piece.is_stderr}] += piece.data;
      });
  for (const auto& [from, text] : output) {
    std::printf("rank %d, %s:\n%s", from.first, from.second ? "stderr" : "stdout", text.c_str());
  }
  return status;
}

}  // namespace

int main(int count, char** words) {
  JobRequest request;
  if (!parse(count, words, &request)) {
    std::fprintf(stderr, "usage: submit_and_watch [FIELD=VALUE]... -- COMMAND [ARGUMENT]...\n");
    return meshrun::kExitUsage;
  }
  // Before a thread starts: all of them leave these signals to the one that waits for them below.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const auto client = JobClient::Connect();
  if (!client.ok()) return fail(client.status());
  const auto job = (*client)->Submit(request);
  if (!job.ok()) return fail(job.status());
  if (!job->too_big.empty()) std::fprintf(stderr, "it waits: %s\n", job->too_big.c_str());

  // It may use the client until the process ends, by _Exit.
  std::thread([&signals, &client, id = job->id] {
    int number = 0;
    while (sigwait(&signals, &number) == 0) {
      (void)(*client)->Cancel(id, /*now=*/false, "by a signal to submit_and_watch");
    }
  }).detach();

  JobStatus shown;
  const auto end = (*client)->Watch(job->id, [&](const JobStatus& now) {
    if (now.state != shown.state || now.reason != shown.reason) print_change(now);
    shown = now;
  });
  if (!end.ok()) std::_Exit(fail(end.status()));
  if (end->generation > 0) {
    if (const absl::Status status = print_last_lines(**client, job->id); !status.ok()) {
      std::fprintf(stderr, "its output: %s\n", std::string(status.message()).c_str());
    }
  }
  std::fflush(stdout);
  std::_Exit(end->exit_code.value_or(meshrun::kExitJobFailed));
}
