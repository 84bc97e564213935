#include "client/cli/show_logs.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/cli/context.h"
#include "client/cli/event_queue.h"
#include "client/cli/output_pipe.h"
#include "client/cli/screen.h"
#include "client/cli/watching.h"
#include "client/render/log_lines.h"
#include "core/exit_codes.h"
#include "core/mutex.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

// Every generation from the current one on, until the job has ended. Processes of one may live on
// in the next: each generation is read on a thread of its own.
// Returns the job as it ended.
absl::StatusOr<v1::Job> FollowGenerations(
    Client& client, LogQuery query, const std::stop_token& stop,
    const std::function<void(const v1::ReadLogsResponse&)>& on_data) {
  Mutex mu;
  v1::Job last_seen;
  absl::Status outcome;
  std::vector<std::jthread> readers;
  const auto read = [&](const LogQuery& generation) {
    readers.emplace_back([&, generation](const std::stop_token& end) {
      StreamOptions options;
      options.stop = end;
      const absl::Status status = client.ReadLogs(generation, on_data, options);
      MutexLock lock(mu);
      if (!end.stop_requested()) outcome.Update(status);
    });
  };
  uint64_t last = 0;
  StreamOptions watch;
  watch.stop = stop;
  const absl::Status watched = client.Watch(
      query.job_id,
      [&](const v1::Job& job) {
        last_seen = job;
        if (!HasRun(job)) return;
        for (uint64_t g = last == 0 ? job.generation() : last + 1; g <= job.generation(); ++g) {
          query.generation = last = g;
          read(query);
          query.started_there = true;
          query.tail_lines.reset();
        }
      },
      watch);
  {
    const std::stop_callback pass_on(stop, [&] {
      for (std::jthread& reader : readers) reader.request_stop();
    });
    for (std::jthread& reader : readers) reader.join();
  }
  if (stop.stop_requested()) return absl::CancelledError("stopped");
  MutexLock lock(mu);
  MESHRUN_RETURN_IF_ERROR(watched);
  MESHRUN_RETURN_IF_ERROR(outcome);
  return last_seen;
}

std::string NoOutput(const LogQuery& query) {
  const bool all = query.ranks.empty() && query.streams.empty();
  return fmt::format(
      "{}: {} written nothing{}", query.job_id,
      all ? "its ranks have" : "the ranks and streams that you ask for have",
      query.generation == 0 ? "" : fmt::format(" in generation {}", query.generation));
}

}  // namespace

int ShowLogs(Client& client, const LogQuery& query, int world_size, bool json) {
  Screen screen;
  OutputView view;
  // A single rank's output is shown unchanged: it can go to a file.
  if (query.ranks.size() == 1) view.shown_ranks = 1;
  OutputPipe pipe(screen, world_size, view);
  LogLines lines(query.job_id,
                 [&](std::string_view line) { screen.ShowBytes(/*is_stderr=*/false, line); });
  const os::UniqueFd signals = SignalFd(SignalHandling());
  EventQueue queue;
  std::atomic<int> job_code = kExitOk;
  bool has_output = false;
  std::jthread reader([&](const std::stop_token& stop) {
    const auto push = [&](const v1::ReadLogsResponse& chunk) { queue.Push(Output{chunk}, stop); };
    const StreamOptions once{stop, std::chrono::seconds(0), nullptr};
    if (!query.follow || query.generation != 0) {
      queue.Push(OutputEnded{0, client.ReadLogs(query, push, once)});
      return;
    }
    const absl::StatusOr<v1::Job> job = FollowGenerations(client, query, stop, push);
    if (job.ok()) job_code = client::ExitCodeOf(*job);
    queue.Push(OutputEnded{0, job.status()});
  });
  while (true) {
    pollfd fds[2] = {{queue.fd(), POLLIN, 0}, {signals.get(), POLLIN, 0}};
    const auto wait = pipe.waiting() ? kRelease : screen.ticking() ? kRedraw : kRedraw * 10;
    ::poll(fds, 2, static_cast<int>(wait.count()));
    signalfd_siginfo info;
    if (::read(signals.get(), &info, sizeof(info)) == sizeof(info)) {
      return kExitSignalBase + static_cast<int>(info.ssi_signo);
    }
    std::optional<absl::Status> ended;
    for (const Event& event : queue.TakeAll()) {
      if (const auto* output = std::get_if<Output>(&event)) {
        has_output = has_output || !output->chunk.data().empty();
        json ? lines.Append(output->chunk, WallNow()) : pipe.Append(output->chunk);
      }
      if (const auto* end = std::get_if<OutputEnded>(&event)) ended = end->status;
    }
    if (ended) json ? lines.Finish(WallNow()) : pipe.Finish();
    std::vector<std::string> rows;
    pipe.Release(&rows);
    screen.SetRows(std::move(rows));
    screen.Draw(SteadyNow());
    if (ended) screen.RemoveRows();
    screen.Flush();
    if (!screen.alive()) return kExitSignalBase + SIGPIPE;
    if (ended && !ended->ok()) return Fail(*ended);
    if (ended && !has_output && query.tail_lines != 0) Say(NoOutput(query));
    if (ended) return job_code == kExitOk && screen.lost() > 0 ? kExitOutputLost : job_code.load();
  }
}

}  // namespace meshrun::client
