// What the supervisor does for single ranks: their start, their reports, their end.
#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/clock.h"
#include "core/exit_codes.h"
#include "core/os/boot_time.h"
#include "core/os/files.h"
#include "core/os/host_name.h"
#include "core/status.h"
#include "core/utf8.h"
#include "worker/launch/log_layout.h"
#include "worker/supervisor/exit_report.h"
#include "worker/supervisor/process_tree.h"
#include "worker/supervisor/rank_process.h"
#include "worker/supervisor/report.h"
#include "worker/supervisor/supervisor.h"
#include "worker/supervisor/unix_socket.h"

namespace meshrun::worker {
namespace {

using std::chrono::milliseconds;

// At most ten progress messages a second.
constexpr milliseconds kProgressInterval(100);
constexpr size_t kLargestReport = 1 << 16;
constexpr int kReportsPerTurn = 256;
// A killed process ends within a moment, or, in an uninterruptible sleep, not soon.
constexpr milliseconds kClearAgain(20);
constexpr std::chrono::seconds kClearTime(10);
// After a limit has done something: what ends later ends of something else.
constexpr std::chrono::seconds kLimitsBlamedFor(5);
// For the last output of a rank that has ended to reach its files; peers wait for the news.
constexpr milliseconds kDrainTime(500);

void Name(const v1::RankLaunch& launch, pid_t pid, v1::SupervisedProcess* out) {
  out->set_generation(launch.generation());
  out->set_rank(launch.rank());
  if (pid > 0) out->set_pid(pid);
}

}  // namespace

void Supervisor::Say(const std::string& text) const {
  const v1::Fence& fence = options_.launch.fence();
  std::string line = fmt::format("meshrun-supervisor: {} job={} generation={}\n", text,
                                 fence.job_id(), fence.generation());
  line.resize(std::min<size_t>(line.size(), PIPE_BUF));
  pollfd room = {STDERR_FILENO, POLLOUT, 0};
  if (::poll(&room, 1, 0) != 1) return;
  (void)!::write(STDERR_FILENO, line.data(), line.size());
}

void Supervisor::SayToUser(const Rank& rank, const std::string& text) const {
  Say(text);
  if (!rank.errors) return;
  // Opened again, since the rank's own end is to wait where the pipe is full, and this one is not.
  const os::UniqueFd out(::open(fmt::format("/proc/self/fd/{}", rank.errors.get()).c_str(),
                                O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  std::string line = fmt::format("meshrun: {}\n", text);
  line.resize(std::min<size_t>(line.size(), PIPE_BUF));
  (void)!::write(out.get(), line.data(), line.size());
}

void Supervisor::Start(v1::SupervisorStart start) {
  if (phase_ != Phase::kPrepared && phase_ != Phase::kRunning) return;
  if (search_) {
    start_ = std::move(start);
    return;
  }
  if (start.ranks().empty() && ranks_.empty()) *start.mutable_ranks() = options_.launch.ranks();
  phase_ = Phase::kRunning;
  starting_ = std::move(start);
  start_until_ = Now() + kClearTime;
  ContinueStarting(Now());
}

void Supervisor::ContinueStarting(Time now) {
  start_at_ = Time::max();
  if (!starting_) return;
  if (ClearEnded()) {
    StartNow();
  } else if (now < start_until_) {
    start_at_ = now + kClearAgain;
  } else {
    Refuse("cannot start: processes that an ended rank has left here cannot be killed");
  }
  Reap();
}

bool Supervisor::ClearEnded() {
  bool clear = true;
  for (Rank& rank : ranks_) {
    if ((!rank.exited && !rank.reaped) || rank.cleared) continue;
    rank.cleared = rank.pid <= 0 || KillSession(::getpid(), rank.pid, EntryOf(rank.launch)) == 0;
    clear = clear && rank.cleared;
  }
  return clear;
}

void Supervisor::StartNow() {
  const v1::SupervisorStart start = *std::exchange(starting_, std::nullopt);
  v1::SupervisorResponse response;
  response.mutable_started()->set_generation(start.generation());
  const size_t before = ranks_.size();
  for (const v1::RankLaunch& launch : start.ranks()) {
    const bool known = std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
      return rank.launch.generation() == launch.generation() && rank.launch.rank() == launch.rank();
    });
    if (known) continue;
    Rank& rank = ranks_.emplace_back();
    rank.launch = launch;
    rank.exit.set_rank(launch.rank());
    rank.exit.set_process_generation(launch.generation());
    rank.exit.set_process_rank(launch.rank());
    const auto pid = Spawn(rank, start);
    if (pid.ok()) {
      rank.pid = *pid;
      ++running_;
    } else {
      rank.exit.set_exit_code(kExitNotExecutable);
      rank.exit.set_error_message(
          EscapeBytes("cannot start: " + std::string(pid.status().message())));
    }
    Name(launch, rank.pid, response.mutable_started()->add_processes());
  }
  Send(response);
  for (size_t i = before; i < ranks_.size(); ++i) {
    if (ranks_[i].pid < 0) FinishExit(ranks_[i]);
  }
}

absl::StatusOr<pid_t> Supervisor::Spawn(Rank& rank, const v1::SupervisorStart& start) {
  if (found_ && !found_->error().empty()) return absl::NotFoundError(found_->error());
  // One search serves all generations: the job's command stays.
  if (found_) rank.launch.set_argv(0, found_->program());
  MESHRUN_ASSIGN_OR_RETURN(rank.reports, BindDatagrams(rank.launch.report_socket()));
  const v1::RankUser* const user = User();
  if (user != nullptr) {
    MESHRUN_RETURN_IF_ERROR(GiveSocket(rank.launch.report_socket(), user->uid(), user->gid()));
  }
  RankStreams streams;
  streams.in = OpenInput(rank.launch.rank());
  // Where the user named a directory, it is made as the user would make it.
  for (const std::string& path :
       {rank.launch.stdout_path(), rank.launch.stderr_path(), rank.launch.error_file()}) {
    if (!IsOfLogLayout(path)) continue;
    MESHRUN_RETURN_IF_ERROR(os::MakeDirectories(path.substr(0, path.rfind('/')), 0777));
  }
  MESHRUN_ASSIGN_OR_RETURN(streams.out, OpenStream(rank, /*is_stderr=*/false));
  MESHRUN_ASSIGN_OR_RETURN(streams.err, OpenStream(rank, /*is_stderr=*/true));
  if (!rank.launch.event_directory().empty()) {
    rank.errors.reset(::fcntl(streams.err.get(), F_DUPFD_CLOEXEC, 3));
  }
  return StartRank(rank.launch, start.env(), streams, user, options_.launch.cgroup());
}

os::UniqueFd Supervisor::OpenInput(int rank) const {
  if (options_.stdin_fd && rank == options_.stdin_rank) {
    return os::UniqueFd(::fcntl(options_.stdin_fd.get(), F_DUPFD_CLOEXEC, 3));
  }
  if (options_.stdin_directory.empty()) return os::UniqueFd();
  const std::string path = fmt::format("{}/{}", options_.stdin_directory, rank);
  // Without waiting for a writer: where the input has ended, the rank finds its end.
  os::UniqueFd fifo(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fifo) ::fcntl(fifo.get(), F_SETFL, 0);
  return fifo;
}

absl::StatusOr<os::UniqueFd> Supervisor::OpenStream(const Rank& rank, bool is_stderr) {
  if (!copier_) {
    MESHRUN_ASSIGN_OR_RETURN(copier_, OutputCopier::Start());
  }
  const v1::RankUser* const user = User();
  const auto index = static_cast<uint32_t>(&rank - ranks_.data());
  const std::string& path = is_stderr ? rank.launch.stderr_path() : rank.launch.stdout_path();
  MESHRUN_ASSIGN_OR_RETURN(os::UniqueFd file, OpenOutput(path, user));
  const bool of_user = IsOfLogLayout(path);
  if (of_user) ::fchmod(file.get(), 0644);
  return copier_->Add(2 * index + (is_stderr ? 1 : 0), std::move(file),
                      of_user ? 0 : rank.launch.log_limit_bytes(), options_.terminal);
}

void Supervisor::ReadCopies() {
  for (const OutputCopier::Event& event : copier_->TakeEvents()) {
    if (event.stream / 2 >= ranks_.size()) continue;
    Rank& rank = ranks_[event.stream / 2];
    if (event.error != 0) {
      Say(fmt::format("rank {} goes on, and what it writes to {} is lost: {}: {}",
                      rank.launch.rank(), event.stream % 2 == 0 ? "stdout" : "stderr",
                      event.stream % 2 == 0 ? rank.launch.stdout_path() : rank.launch.stderr_path(),
                      std::strerror(event.error)));
    } else if (--rank.draining == 0 && !rank.exited) {
      CompleteExit(rank);
      Reap();
    }
  }
}

void Supervisor::Refuse(const std::string& why) {
  const v1::SupervisorStart start = *std::exchange(starting_, std::nullopt);
  for (const v1::RankLaunch& launch : start.ranks()) {
    Rank& rank = ranks_.emplace_back();
    rank.launch = launch;
    rank.exit.set_rank(launch.rank());
    rank.exit.set_process_generation(launch.generation());
    rank.exit.set_process_rank(launch.rank());
    rank.exit.set_exit_code(kExitNotExecutable);
    rank.exit.set_error_message(why);
    FinishExit(rank);
  }
}

void Supervisor::RecordExit(Rank& rank, int wait_status) {
  rank.reaped = true;
  rank.wait_status = wait_status;
  if (WIFSIGNALED(wait_status)) {
    rank.exit.set_signal(WTERMSIG(wait_status));
  } else {
    rank.exit.set_exit_code(WEXITSTATUS(wait_status));
  }
  rank.exit.set_teardown(stop_sent_ || rank.stop_sent);
  rank.exit.set_at_unix_nanos(Clock::Real().WallNow().count());
  // What it has left goes soon, too.
  if (rank.stop_sent) rank.kill_at = std::min(rank.kill_at, Now() + kClearAgain);
  const auto index = static_cast<uint32_t>(&rank - ranks_.data());
  for (const uint32_t stream : {2 * index, 2 * index + 1}) copier_->Drain(stream);
  rank.draining = 2;
  rank.drained_by = Now() + kDrainTime;
}

void Supervisor::CompleteExit(Rank& rank) {
  rank.errors.reset();
  rank.drained_by = Time::max();
  --running_;
  if (rank.wait_status != 0) {
    ReadLeftBehind(rank.launch, &rank.exit);
    BlameLimits(&rank.exit);
  }
  if (rank.exit.teardown() && rank.exit.error_message().empty()) {
    rank.exit.set_error_message(stopped_by_);
  }
  FinishExit(rank);
}

void Supervisor::LookAtLimits() {
  const CgroupCounts now = CountsOf(options_.launch.cgroup());
  if (now == counts_) return;
  counts_before_ = std::exchange(counts_, now);
  counts_changed_ = Now();
}

void Supervisor::BlameLimits(v1::RankExit* exit) {
  LookAtLimits();
  if (exit->teardown() || counts_changed_ == Time::min() ||
      Now() - counts_changed_ > kLimitsBlamedFor) {
    return;
  }
  const std::string text = WhatLimitsDid(options_.launch.cgroup(), counts_before_, counts_);
  if (text.empty()) return;
  exit->set_out_of_memory(RanOutOfMemory(counts_before_, counts_));
  exit->set_error_message(
      exit->error_message().empty() ? text : fmt::format("{}; {}", text, exit->error_message()));
}

void Supervisor::FinishExit(Rank& rank) {
  rank.exited = true;
  if (!rank.reaped) rank.exit.set_at_unix_nanos(Clock::Real().WallNow().count());
  // Its last reports are passed on before its end.
  ReadReports(rank);
  SendProgress(Now());
  v1::SupervisorResponse response;
  *response.mutable_rank_exit() = rank.exit;
  Send(response);
}

void Supervisor::ReadReports(Rank& rank) {
  static char buffer[kLargestReport];
  const bool writes_events = !rank.launch.event_directory().empty();
  // Bounded: a rank that floods its socket loses reports and does not hold up the others.
  for (int i = 0; i < kReportsPerTurn; ++i) {
    const auto report = ReceiveDatagram(rank.reports.get(), buffer);
    if (!report) break;
    const bool had_step = rank.progress.has_step();
    const int64_t step = rank.progress.step();
    v1::Progress values;
    const std::string refused = MergeReport(report->text, &rank.progress, &values);
    if (refused.empty()) {
      if (rank.progress.has_step() && (!had_step || rank.progress.step() != step)) {
        // Times of arrival may be measured to lie before the last one's.
        rank.progress.set_step_at_nanos(
            std::max<int64_t>(report->sent.count(), rank.progress.step_at_nanos()));
        v1::StepTime step;
        step.set_step(rank.progress.step());
        step.set_at_nanos(rank.progress.step_at_nanos());
        KeepStep(std::move(step), &rank.steps);
      }
      rank.latest.Add(values, rank.progress);
      if (writes_events) WriteEvents(rank, std::move(values));
    } else if (++malformed_reports_ == 1) {
      Say(fmt::format("a report of rank {} is ignored, as others like it are: {}",
                      rank.launch.rank(), refused));
    }
  }
  if (rank.latest.has_unsent())
    progress_at_ = std::min(progress_at_, last_progress_ + kProgressInterval);
}

void Supervisor::WriteEvents(const Rank& rank, v1::Progress report) {
  if (!event_files_) {
    auto files = EventFiles::Start(User());
    if (!files.ok()) {
      if (!std::exchange(lost_events_told_, true)) {
        SayToUser(rank, "no event files are written: " + std::string(files.status().message()));
      }
      return;
    }
    event_files_ = *std::move(files);
  }
  if (report.has_step() && rank.progress.has_step_at_nanos()) {
    report.set_step_at_nanos(rank.progress.step_at_nanos());
  }
  const auto index = static_cast<uint32_t>(&rank - ranks_.data());
  const std::string tag =
      fmt::format("{}.{}.{}", os::HostName(), rank.pid, rank.launch.generation());
  event_files_->Add(index, rank.launch.event_directory(), tag, report, Clock::Real().WallNow());
  if (event_files_->lost() > 0 && !std::exchange(lost_events_told_, true)) {
    SayToUser(
        rank,
        fmt::format("rank {} goes on, and not all of its reports are in {}: the file system there "
                    "is too slow",
                    rank.launch.rank(), rank.launch.event_directory()));
  }
}

void Supervisor::ReadEventFiles(short ready) {
  if ((ready & POLLOUT) != 0) event_files_->OnWritable();
  for (const EventFiles::Problem& problem : event_files_->TakeProblems()) {
    const Rank& rank = ranks_[std::min<size_t>(problem.process, ranks_.size() - 1)];
    SayToUser(rank, fmt::format("rank {} goes on without event files: {}: {}", rank.launch.rank(),
                                problem.path, std::strerror(problem.error)));
  }
  // The thread has ended: what it had to say is read.
  if ((ready & (POLLHUP | POLLERR)) != 0) event_files_->Close();
}

void Supervisor::SendProgress(Time now) {
  progress_at_ = Time::max();
  v1::SupervisorResponse response;
  for (Rank& rank : ranks_) {
    if (!rank.latest.has_unsent() || !connection_) continue;
    v1::ProcessProgress* progress = nullptr;
    for (v1::Progress& values : rank.latest.TakeUnsent()) {
      progress = response.mutable_progress()->add_progress();
      progress->set_generation(rank.launch.generation());
      progress->set_rank(rank.launch.rank());
      *progress->mutable_progress() = std::move(values);
    }
    progress->mutable_steps()->Assign(rank.steps.begin(), rank.steps.end());
    rank.steps.clear();
  }
  if (!response.has_progress()) return;
  last_progress_ = now;
  Send(response);
}

v1::SupervisorState Supervisor::State() const {
  v1::SupervisorState state;
  state.set_started(phase_ != Phase::kPrepared);
  state.set_ended(phase_ == Phase::kEnded);
  *state.mutable_ping() = ping_;
  state.set_searching(search_.has_value());
  if (found_) *state.mutable_found() = *found_;
  for (const Rank& rank : ranks_) {
    Name(rank.launch, rank.pid, state.add_processes());
    if (rank.exited) *state.add_exits() = rank.exit;
  }
  return state;
}

}  // namespace meshrun::worker
