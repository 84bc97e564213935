// Why a daemon stops its ranks and how it ends: a signal, the lifeline, or a coordinator that has
// been silent for too long, which stops the ranks alone.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/log.h"
#include "core/os/boot_time.h"
#include "core/os/children.h"
#include "core/os/process.h"
#include "core/proto_time.h"
#include "core/signal_name.h"
#include "worker/daemon.h"

namespace meshrun::worker {
namespace {

constexpr std::chrono::seconds kFarewell(1);
// The longest wait for processes that were killed at once.
constexpr std::chrono::seconds kKillTime(2);
// While a worker that stops waits until its ranks have moved.
constexpr std::chrono::milliseconds kLookAgain(500);
// A coordinator that is being restarted is back by then.
constexpr std::chrono::seconds kCoordinatorRestart(4);
// What orphans have between SIGTERM and SIGKILL, at most.
constexpr std::chrono::seconds kOrphanGrace(5);

}  // namespace

void Daemon::WatchSignals() {
  const sigset_t set = os::TerminationSignals();
  signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  loop_.Watch(signals_.get(), POLLIN, [this](short) {
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      // A batch system signals every process of its job. The holder of our lifeline is one of them,
      // and stops the ranks in order; until then they need this daemon.
      if (options_.lifeline_fd && static_cast<pid_t>(info.ssi_pid) != ::getppid()) continue;
      Stop("it got " + SignalName(static_cast<int>(info.ssi_signo)),
           /*at_once=*/stopping_);
    }
  });
}

void Daemon::WatchLifeline() {
  if (!options_.lifeline_fd) return;
  const int fd = options_.lifeline_fd.get();
  loop_.Watch(fd, POLLIN, [this, fd](short) {
    char byte;
    const ssize_t n = ::read(fd, &byte, 1);
    if (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN))) return;
    loop_.Unwatch(fd);
    // The supervisors see it too.
    Stop(options_.lifeline_of + " has ended", /*at_once=*/true);
  });
}

bool Daemon::IsEnding() {
  if (!stopping_ && options_.lifeline_fd) {
    // The supervisors may have seen its end, and killed their ranks, before this loop.
    pollfd lifeline{options_.lifeline_fd.get(), POLLIN, 0};
    if (::poll(&lifeline, 1, 0) <= 0 || (lifeline.revents & POLLHUP) == 0) return false;
    stopping_because_ = options_.lifeline_of + " has ended";
  }
  return !stopping_because_.empty();
}

void Daemon::OnTick() {
  if (ending_) return;
  loop_.After(ping_interval_, [this] { OnTick(); });
  generations_->PingAll();
  os::CollectAdopted();
  CheckContact();
}

std::chrono::nanoseconds Daemon::KillAfter() const {
  return options_.orphan_timeout + kOrphanGrace;
}

v1::SupervisorPing Daemon::MakePing() const {
  v1::SupervisorPing ping;
  *ping.mutable_good_for() = ToProtoDuration(KillAfter());
  ping.set_since_boottime_nanos(session_->Contact().count());
  return ping;
}

void Daemon::CheckContact() {
  loop_.Cancel(contact_timer_);
  const auto silence = os::BootTimeNow() - session_->Contact();
  const bool orphaned = silence >= options_.orphan_timeout;
  const bool fenced = silence >= KillAfter();
  const std::string reason = fmt::format("{} has lost its coordinator", options_.name);
  const bool begins = orphaned && !orphaned_ && !generations_->AllEnded();
  // A coordinator whose answers are late may start ranks after that.
  const bool has_orphans = orphaned && generations_->MarkOrphaned();
  if (begins || has_orphans) {
    log::Error("no coordinator for longer than --orphan-timeout: stopping the ranks");
    generations_->StopAll(kOrphanGrace, reason);
  }
  if (fenced && !generations_->AllEnded() && !std::exchange(fenced_, true)) {
    log::Error("no coordinator until the fence time: killing the ranks");
    generations_->KillAll(reason);
  }
  orphaned_ = orphaned;
  fenced_ = fenced_ && fenced;
  if (fenced) return;
  const auto next = (orphaned ? KillAfter() : options_.orphan_timeout) - silence;
  if (next < ping_interval_) contact_timer_ = loop_.After(next, [this] { CheckContact(); });
}

void Daemon::Stop(const std::string& because, bool at_once) {
  log::Info("stops", {{"because", because}});
  stopping_ = true;
  if (stopping_because_.empty()) stopping_because_ = because;
  const std::string reason = fmt::format("the worker on {} stops: {}", options_.name, because);
  // This comes first: no job may take the slots that become free while the last rank ends.
  session_->Drain();
  generations_->Refuse(reason);
  const auto deadline = at_once
                            ? std::min<std::chrono::nanoseconds>(options_.stop_timeout, kKillTime)
                            : generations_->LongestKillGrace() + options_.stop_timeout;
  if (!at_once && !options_.kill_at_once) {
    generations_->StopAllAfterTheyMoved(reason);
    StopWithoutACoordinator(reason, os::BootTimeNow());
  } else {
    generations_->StopAll(at_once ? std::optional(std::chrono::nanoseconds(0)) : std::nullopt,
                          reason);
  }
  // A rank in an uninterruptible sleep (a dead NFS server) outlives every signal.
  loop_.After(deadline, [this] {
    if (ending_) return;
    log::Warning("stopping, although some killed processes have not ended",
                 {{"left", generations_->DescribeRunning()}});
    End();
  });
  EndWhenQuiet();
}

void Daemon::StopWithoutACoordinator(const std::string& reason,
                                     std::chrono::nanoseconds last_open) {
  if (ending_) return;
  const auto now = os::BootTimeNow();
  if (session_->open()) last_open = now;
  // Nobody moves their jobs any more.
  if (now - last_open >= kCoordinatorRestart) return generations_->StopAll(std::nullopt, reason);
  loop_.After(kLookAgain,
              [this, reason, last_open] { StopWithoutACoordinator(reason, last_open); });
}

void Daemon::EndWhenQuiet() {
  if (generations_->AllEnded()) End();
}

void Daemon::End() {
  if (std::exchange(ending_, true)) return;
  session_->Close(kFarewell, [this] {
    // Waits for calls that need the loop; the loop stops after it.
    ender_ = std::thread([this] {
      health_->Stop();
      agent_server_->Stop();
      // Directories of generations that are over; what hangs is left to the next daemon.
      files_.Drain(kFarewell);
      loop_.Stop();
    });
  });
}

}  // namespace meshrun::worker
