#include "worker/supervisor/supervisor.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/os/boot_time.h"
#include "core/os/files.h"
#include "core/os/process.h"
#include "core/proto_time.h"
#include "core/signal_name.h"
#include "core/status.h"
#include "worker/supervisor/process_tree.h"
#include "worker/supervisor/rank_process.h"
#include "worker/supervisor/unix_socket.h"

namespace meshrun::worker {
namespace {

using std::chrono::milliseconds;

// Time for the processes that remain when all ranks have exited: they may still be tidying up.
constexpr milliseconds kLinger(200);
// A killed process ends within a moment, or, in an uninterruptible sleep, not soon. Each attempt
// reads /proc, so the pauses grow.
constexpr milliseconds kKillAgain(20);
constexpr milliseconds kKillAgainAtMost(1000);
// For what handles the first signal of a stop, such as Python's KeyboardInterrupt, before SIGTERM.
constexpr milliseconds kFirstSignalTime(2000);
constexpr int kFirstSignalPartOfGrace = 3;

// All but those by which the kernel tells of this process's own faults. Most would end it by
// default, and its ranks with it: nobody would know of what.
sigset_t HandledSignals() {
  sigset_t set;
  sigfillset(&set);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) {
    sigdelset(&set, fault);
  }
  return set;
}

bool StopsRanks(int signal) { return signal == SIGTERM || signal == SIGINT || signal == SIGQUIT; }

// By default nothing happens, or a stopped process goes on: nobody means anything by it.
bool IsRoutine(int signal) {
  return signal == SIGCHLD || signal == SIGCONT || signal == SIGWINCH || signal == SIGURG;
}

// To the rank's process group: a shell between us and the program passes no signal on. Right after
// the fork the group does not exist yet.
void SignalGroup(pid_t pid, int signal) {
  if (::kill(-pid, signal) != 0) ::kill(pid, signal);
}

// Processes that were stopped (SIGSTOP) take no other signal before they go on.
void End(pid_t pid, int signal) {
  SignalGroup(pid, signal);
  SignalGroup(pid, SIGCONT);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Supervisor>> Supervisor::Create(SupervisorOptions options) {
  std::unique_ptr<Supervisor> supervisor(new Supervisor(std::move(options)));
  MESHRUN_RETURN_IF_ERROR(supervisor->Bind());
  return supervisor;
}

absl::Status Supervisor::Bind() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::signal(SIGPIPE, SIG_IGN);
  const sigset_t set = HandledSignals();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return os::ErrnoStatus(errno, "signalfd");

  lifeline_ = std::move(options_.lifeline);
  listener_ = std::move(options_.listener);
  if (!listener_) {
    MESHRUN_ASSIGN_OR_RETURN(listener_, ListenUnix(options_.directory + "/sup.sock"));
  }
  TakePing(options_.launch.ping());
  lease_end_ = Now() + FromProto(options_.launch.lease());
  if (options_.launch.has_search()) {
    MESHRUN_ASSIGN_OR_RETURN(search_, ProgramSearch::Begin(options_.launch.search(), User()));
  }
  return absl::OkStatus();
}

void Supervisor::Run() {
  while (!Finished()) {
    std::vector<pollfd> fds = PollSet();
    if (::poll(fds.data(), fds.size(), PollTimeout(Now())) > 0) Dispatch(fds);
    AtTime(Now());
    if (connection_ && !writer_.Flush(connection_.get())) Disconnect();
  }
}

bool Supervisor::Finished() const {
  return phase_ == Phase::kEnded && (abandoned_ || (released_ && writer_.empty()));
}

std::vector<pollfd> Supervisor::PollSet() const {
  // poll() passes over negative descriptors.
  const short connection_events = static_cast<short>(POLLIN | (writer_.empty() ? 0 : POLLOUT));
  const bool events_wait = event_files_ && event_files_->waits_for_room();
  const short event_files = static_cast<short>(POLLIN | (events_wait ? POLLOUT : 0));
  std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0},
                             {lifeline_.get(), POLLIN, 0},
                             {listener_.get(), POLLIN, 0},
                             {connection_.get(), connection_events, 0},
                             {search_ ? search_->fd() : -1, POLLIN, 0},
                             {copier_ ? copier_->fd() : -1, POLLIN, 0},
                             {event_files_ ? event_files_->fd() : -1, event_files, 0}};
  for (const Rank& rank : ranks_) fds.push_back({rank.reports.get(), POLLIN, 0});
  return fds;
}

int Supervisor::PollTimeout(Time now) const {
  Time next = DaemonLives() ? Time::max() : lease_end_;
  if (phase_ != Phase::kEnded) next = std::min(next, kill_at_);
  next = std::min({next, progress_at_, start_at_, terminate_at_});
  if (search_) next = std::min(next, search_->deadline());
  for (const Rank& rank : ranks_) next = std::min({next, rank.kill_at, rank.drained_by});
  auto wait = std::chrono::ceil<milliseconds>(next - now).count();
  if (const auto fence = UntilFence()) {
    wait = std::min(wait, std::chrono::ceil<milliseconds>(*fence).count());
  }
  return static_cast<int>(std::clamp<int64_t>(wait, 0, 60'000));
}

void Supervisor::Dispatch(const std::vector<pollfd>& fds) {
  constexpr size_t kFirstRank = 7;
  if (fds[0].revents != 0) ReadSignals();
  if (fds[1].revents != 0) {
    char byte;
    const ssize_t n = ::read(lifeline_.get(), &byte, 1);
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) {
      lifeline_.reset();
      Abandon("its lifeline broke");
    }
  }
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (fds[kFirstRank + i].revents != 0) ReadReports(ranks_[i]);
  }
  if (fds[5].revents != 0) ReadCopies();
  if (fds[6].revents != 0) ReadEventFiles(fds[6].revents);
  if (search_ && fds[4].revents != 0) {
    if (auto found = search_->Read()) EndSearch(*std::move(found));
  }
  if (connection_ && fds[3].revents != 0) ReadRequests();
  if (fds[2].revents != 0) Accept();
}

void Supervisor::AtTime(Time now) {
  if (now >= progress_at_) SendProgress(now);
  if (search_ && now >= search_->deadline()) EndSearch(search_->GiveUp());
  // Judged only after all that had arrived was read: a supervisor that was itself held up must not
  // blame its daemon.
  if (now >= lease_end_ && !DaemonLives()) {
    lease_end_ = Time::max();
    if (!abandoned_) Abandon("its daemon has been silent for longer than the lease");
  }
  if (now >= start_at_) ContinueStarting(now);
  if (now >= terminate_at_) {
    terminate_at_ = Time::max();
    if (phase_ == Phase::kStopping) EndRanks(SIGTERM);
  }
  KillAlone(now);
  for (Rank& rank : ranks_) {
    if (now < rank.drained_by) continue;
    CompleteExit(rank);
    Reap();
  }
  if (const auto fence = UntilFence(); fence && fence->count() <= 0) {
    if (running_ > 0 && !stop_sent_) Say("killing its ranks: the fence time of this host is over");
    Kill();
  }
  if (phase_ != Phase::kEnded && now >= kill_at_) Kill();
}

void Supervisor::Accept() {
  os::UniqueFd accepted(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted) return;
  connection_ = std::move(accepted);
  reader_ = FrameReader();
  writer_ = FrameWriter();
  lease_end_ = abandoned_ ? lease_end_ : Now() + FromProto(options_.launch.lease());
  v1::SupervisorResponse response;
  *response.mutable_state() = State();
  Send(response);
  for (Rank& rank : ranks_) rank.latest.OfferAgain();
  SendProgress(Now());
}

void Supervisor::ReadRequests() {
  const bool open = reader_.ReadAvailable(connection_.get());
  while (const auto bytes = reader_.Next()) {
    v1::SupervisorRequest request;
    if (!request.ParseFromString(*bytes)) continue;
    if (!abandoned_) lease_end_ = Now() + FromProto(options_.launch.lease());
    Handle(request);
  }
  if (!open) Disconnect();
}

void Supervisor::Disconnect() {
  if (!abandoned_) lease_end_ = Now() + FromProto(options_.launch.lease());
  connection_.reset();
  writer_ = FrameWriter();
  if (options_.end_with_daemon && !released_) Abandon("its daemon is gone");
}

void Supervisor::Handle(const v1::SupervisorRequest& request) {
  switch (request.message_case()) {
    case v1::SupervisorRequest::kStart:
      Start(request.start());
      break;
    case v1::SupervisorRequest::kStop:
      if (request.stop().processes().empty()) {
        Stop(FromProto(request.stop().grace()), request.stop().first_signal());
      } else {
        StopAlone(request.stop());
      }
      break;
    case v1::SupervisorRequest::kSignal:
      Signal(request.signal());
      break;
    case v1::SupervisorRequest::kPing:
      TakePing(request.ping());
      break;
    case v1::SupervisorRequest::kRelease:
      released_ = true;
      break;
    default:
      break;
  }
}

void Supervisor::Send(const v1::SupervisorResponse& response) {
  if (connection_) writer_.Append(response);
}

void Supervisor::EndSearch(v1::ProgramFound found) {
  search_.reset();
  found_ = std::move(found);
  v1::SupervisorResponse response;
  *response.mutable_state() = State();
  Send(response);
  if (start_) Start(*std::exchange(start_, std::nullopt));
}

void Supervisor::Stop(std::chrono::nanoseconds grace, int first_signal) {
  // An exit that happened before this stop is not a consequence of it.
  Reap();
  if (phase_ == Phase::kPrepared) {
    phase_ = Phase::kStopping;
    Reap();
    return;
  }
  if (phase_ != Phase::kRunning && phase_ != Phase::kStopping) return;
  stop_sent_ = true;
  if (phase_ == Phase::kRunning && grace.count() > 0) {
    const bool terminates = first_signal == 0 || first_signal == SIGTERM;
    EndRanks(terminates ? SIGTERM : first_signal);
    if (!terminates) {
      terminate_at_ = Now() + std::min<std::chrono::nanoseconds>(kFirstSignalTime,
                                                                 grace / kFirstSignalPartOfGrace);
    }
  }
  phase_ = Phase::kStopping;
  // A second stop can only shorten the grace.
  kill_at_ = std::min(kill_at_, Now() + grace);
}

void Supervisor::EndRanks(int signal) {
  for (const Rank& rank : ranks_) {
    if (rank.pid > 0 && !rank.reaped) End(rank.pid, signal);
  }
}

void Supervisor::StopAlone(const v1::SupervisorStop& stop) {
  Reap();
  for (const v1::SupervisedProcess& process : stop.processes()) {
    for (Rank& rank : ranks_) {
      if (rank.launch.generation() != process.generation() ||
          rank.launch.rank() != process.rank() || rank.reaped) {
        continue;
      }
      const auto grace = FromProto(stop.grace());
      if (!std::exchange(rank.stop_sent, true) && grace.count() > 0) End(rank.pid, SIGTERM);
      rank.kill_at = std::min(rank.kill_at, Now() + grace);
    }
  }
}

void Supervisor::Signal(const v1::SupervisorSignal& signal) {
  // Nobody else waits for these children: until this one does, their pids are theirs.
  Reap();
  for (const v1::SupervisedProcess& process : signal.processes()) {
    for (const Rank& rank : ranks_) {
      if (rank.launch.generation() != process.generation() ||
          rank.launch.rank() != process.rank() || rank.pid <= 0 || rank.exited) {
        continue;
      }
      if (signal.signal() == SIGSTOP || signal.signal() == SIGCONT) {
        SignalGroup(rank.pid, signal.signal());
      } else {
        ::kill(rank.pid, signal.signal());
      }
    }
  }
}

void Supervisor::KillAlone(Time now) {
  for (Rank& rank : ranks_) {
    if (now < rank.kill_at) continue;
    const int left = KillSession(::getpid(), rank.pid, EntryOf(rank.launch));
    Reap();
    rank.kill_at = left == 0 && rank.exited ? Time::max() : now + kKillAgainAtMost / 10;
  }
}

void Supervisor::TakePing(const v1::SupervisorPing& ping) {
  LookAtLimits();
  if (ping.has_good_for()) ping_ = ping;
}

bool Supervisor::DaemonLives() const { return connection_ && ping_.has_good_for(); }

std::optional<std::chrono::nanoseconds> Supervisor::UntilFence() const {
  if (!ping_.has_good_for() || (phase_ != Phase::kRunning && phase_ != Phase::kStopping)) {
    return std::nullopt;
  }
  return FromProto(ping_.good_for()) + std::chrono::nanoseconds(ping_.since_boottime_nanos()) -
         os::BootTimeNow();
}

void Supervisor::Abandon(const char* why) {
  Reap();
  abandoned_ = true;
  if (phase_ == Phase::kEnded) return;
  if (running_ > 0) Say(fmt::format("killing its ranks: {}", why));
  stop_sent_ = true;
  if (phase_ == Phase::kPrepared) phase_ = Phase::kRunning;
  Kill();
}

void Supervisor::Kill() {
  phase_ = Phase::kKilling;
  starting_.reset();
  start_at_ = Time::max();
  stop_sent_ = true;
  KillCgroup(options_.launch.cgroup());
  KillDescendants(::getpid());
  kill_again_ = std::clamp(kill_again_ * 2, kKillAgain, kKillAgainAtMost);
  kill_at_ = Now() + kill_again_;
  Reap();
}

void Supervisor::Reap() {
  bool child_left = true;
  while (true) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid < 0 && errno == EINTR) continue;
    if (pid <= 0) {
      child_left = pid == 0;
      break;
    }
    const auto rank = std::find_if(ranks_.begin(), ranks_.end(),
                                   [pid](const Rank& r) { return r.pid == pid && !r.reaped; });
    if (rank != ranks_.end()) RecordExit(*rank, status);
  }
  if (phase_ == Phase::kPrepared || phase_ == Phase::kEnded || running_ > 0) return;
  if (starting_ && phase_ == Phase::kRunning) return;
  if (child_left || IsPopulated(options_.launch.cgroup())) {
    if (phase_ != Phase::kKilling) kill_at_ = std::min(kill_at_, Now() + kLinger);
    return;
  }
  phase_ = Phase::kEnded;
  // A subreaper without children has no descendants.
  RemoveCgroup(options_.launch.cgroup());
  const absl::Status written = os::WriteFileAtomically(
      options_.directory + "/final", State().SerializeAsString(), 0600, /*sync=*/false);
  if (!written.ok()) Say(std::string(written.message()));
  v1::SupervisorResponse response;
  response.mutable_ended();
  Send(response);
}

void Supervisor::ReadSignals() {
  signalfd_siginfo info;
  std::string terminated_by;
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    const std::string name = SignalName(signal);
    if (StopsRanks(signal)) {
      terminated_by = name;
    } else if (!IsRoutine(signal)) {
      Say(fmt::format("ignored {}, which was sent to this supervisor and not to a rank", name));
    }
  }
  Reap();
  if (terminated_by.empty()) return;
  if (running_ > 0 && !stop_sent_) {
    stopped_by_ = fmt::format("the ranks' supervisor was sent {}", terminated_by);
    Say(fmt::format("stopping its ranks: {}", stopped_by_));
  }
  Stop(FromProto(options_.launch.kill_grace()), /*first_signal=*/0);
}

}  // namespace meshrun::worker
