// What the supervisor does for single ranks: their start, their reports, their end.
#include <fmt/format.h>
#include <limits.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/clock.h"
#include "core/exit_codes.h"
#include "core/status.h"
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
// A rank that floods its log goes beyond the limit by what it writes meanwhile.
constexpr milliseconds kLogInterval(1000);
constexpr size_t kLargestReport = 1 << 16;
constexpr int kReportsPerTurn = 256;
// A killed process ends within a moment, or, in an uninterruptible sleep, not soon.
constexpr milliseconds kClearAgain(20);
constexpr std::chrono::seconds kClearTime(10);

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
  GoOnStarting(Now());
}

void Supervisor::GoOnStarting(Time now) {
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
    if (!rank.exited || rank.cleared) continue;
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
      rank.exit.set_error_message("cannot start: " + std::string(pid.status().message()));
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
  const v1::RankUser* const user = options_.launch.has_user() ? &options_.launch.user() : nullptr;
  if (user != nullptr) {
    MESHRUN_RETURN_IF_ERROR(GiveSocket(rank.launch.report_socket(), user->uid(), user->gid()));
  }
  const auto pid = StartRank(rank.launch, start.env(), user);
  if (pid.ok() && rank.launch.log_limit_bytes() > 0) {
    for (const std::string& path : {rank.launch.stdout_path(), rank.launch.stderr_path()}) {
      rank.logs.emplace_back(path, rank.launch.log_limit_bytes());
    }
    logs_at_ = std::min(logs_at_, Now() + kLogInterval);
  }
  return pid;
}

void Supervisor::CheckLogs(Time now) {
  bool any = false;
  for (Rank& rank : ranks_) {
    for (BoundedLog& log : rank.logs) {
      if (const absl::Status status = log.Check(); !status.ok()) {
        Say(std::string(status.message()));
      }
      any |= log.bounded() && !rank.exited;
    }
    if (rank.exited) rank.logs.clear();
  }
  logs_at_ = any ? now + kLogInterval : Time::max();
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
  --running_;
  if (WIFSIGNALED(wait_status)) {
    rank.exit.set_signal(WTERMSIG(wait_status));
  } else {
    rank.exit.set_exit_code(WEXITSTATUS(wait_status));
  }
  rank.exit.set_teardown(stop_sent_ || rank.stop_sent);
  // What it has left goes soon, too.
  if (rank.stop_sent) rank.kill_at = std::min(rank.kill_at, Now() + kClearAgain);
  if (wait_status != 0) ReadLeftBehind(rank.launch, &rank.exit);
  FinishExit(rank);
}

void Supervisor::FinishExit(Rank& rank) {
  rank.exited = true;
  rank.exit.set_at_unix_nanos(Clock::Real().WallNow().count());
  // Its last reports are passed on before its end.
  ReadReports(rank);
  SendProgress(Now());
  v1::SupervisorResponse response;
  *response.mutable_rank_exit() = rank.exit;
  Send(response);
}

void Supervisor::ReadReports(Rank& rank) {
  static char buffer[kLargestReport];
  // Bounded: a rank that floods its socket loses reports and does not hold up the others.
  for (int i = 0; i < kReportsPerTurn; ++i) {
    const ssize_t n = ::recv(rank.reports.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n < 0) break;
    if (MergeReport(std::string_view(buffer, n), &rank.progress)) {
      rank.progress_unsent = true;
    } else if (++malformed_reports_ == 1) {
      Say(fmt::format("rank {} sends reports that are not JSON objects: {} bytes ignored",
                      rank.launch.rank(), n));
    }
  }
  if (rank.progress_unsent)
    progress_at_ = std::min(progress_at_, last_progress_ + kProgressInterval);
}

void Supervisor::SendProgress(Time now) {
  progress_at_ = Time::max();
  v1::SupervisorResponse response;
  for (Rank& rank : ranks_) {
    if (!rank.progress_unsent || !connection_) continue;
    rank.progress_unsent = false;
    v1::ProcessProgress& progress = *response.mutable_progress()->add_progress();
    progress.set_generation(rank.launch.generation());
    progress.set_rank(rank.launch.rank());
    *progress.mutable_progress() = rank.progress;
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
