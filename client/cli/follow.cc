#include "client/cli/follow.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "client/cli/context.h"
#include "client/cli/event_queue.h"
#include "client/cli/leaving.h"
#include "client/cli/output_pipe.h"
#include "client/cli/output_stream.h"
#include "client/cli/screen.h"
#include "client/cli/watching.h"
#include "client/render/progress.h"
#include "client/render/report.h"
#include "client/render/world_change.h"
#include "core/exit_codes.h"
#include "core/signal_name.h"
#include "core/text.h"

namespace meshrun::client {
namespace {

using std::chrono::nanoseconds;

class Follower {
 public:
  Follower(Client& client, const v1::Job& job, const FollowOptions& options)
      : client_(client),
        options_(options),
        signals_(SignalFd(options.signals)),
        screen_(options.view.input_rank >= 0, options.json ? STDERR_FILENO : STDOUT_FILENO),
        job_(job) {}
  int Run();

 private:
  struct Reader {
    // Output of the ranks of the reader's generation.
    std::unique_ptr<OutputView> view;
    std::unique_ptr<OutputPipe> pipe;
    std::jthread thread;
    bool ended = false;
  };

  void Handle(const JobChanged& event);
  void Handle(const WatchEnded& event);
  void Handle(const Output& event);
  void Handle(const OutputEnded& event);
  void Handle(const Interrupted& event);
  void Handle(const CancelAnswered& event);
  void Handle(const SignalAnswered& event);
  void Handle(const PauseAnswered& event);
  void Handle(const LeaveAnswered& event);
  void OnSignal(int signal);
  // SIGTSTP: the ranks stop, and once they are told this process does.
  void Pause();
  void Send(int signal, const std::vector<int>& ranks);
  // This node is taken out of the job, which goes on.
  void Leave(int signal);
  bool HasLeft() const;
  void StartReader();
  // Local rank of each rank whose output is shown here, by rank.
  std::map<int, int> RanksHere() const;
  void Cancel(bool now, const std::string& reason, int first_signal);
  // The other nodes of a job of several hosts hear where it was.
  std::string Here() const { return options_.only_node.empty() ? "" : " on " + options_.only_node; }
  // Waits for the next thing to do.
  void Wait();
  void Draw();
  // The coordinator's host has its own words for that, and its watch says them.
  bool SaysLost(const absl::Status& status) const {
    return options_.coordinator_lost != nullptr &&
           (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status));
  }
  // The exit code where no signal has ended the job.
  int SignalOr(int code) const {
    return first_signal_ != 0 ? kExitSignalBase + first_signal_ : code;
  }
  bool OutputIsComplete() const;
  bool OutputWasLost() const;
  void SayLost();
  int Finish();
  // Returns `code`, or kExitOutputLost.
  int PrintJson(int code) const;

  Client& client_;
  const FollowOptions& options_;
  EventQueue queue_;
  os::UniqueFd signals_;
  Screen screen_;
  ProgressMeter meter_;
  WorldChanges world_changes_;
  v1::Job job_;
  std::string waiting_said_;
  std::map<uint64_t, Reader> readers_;
  int signals_seen_ = 0;
  int first_signal_ = 0;
  bool pausing_ = false;
  // This node was asked to leave; and the coordinator has agreed.
  bool leave_asked_ = false;
  bool leaves_ = false;
  // No rank ran then: nothing has to end first.
  bool left_waiting_ = false;
  // Ranks that Ctrl-Z has stopped, and their generation; empty: all.
  std::vector<int> paused_;
  uint64_t paused_generation_ = 0;
  // Set when there is an exit code without the job's end.
  int leave_with_ = -1;
  bool watch_ended_ = false;
  nanoseconds drain_until_{0};
  // Last: they are joined before what they use goes.
  std::vector<std::jthread> threads_;
};

int Follower::Run() {
  world_changes_.Update(job_);
  meter_.Look(job_);
  threads_.emplace_back([this](const std::stop_token& stop) {
    StreamOptions stream{stop, options_.patience,
                         [&](const absl::Status& status) { queue_.Push(Interrupted{status}); }};
    const absl::Status status = client_.Watch(
        job_.job_id(), [&](const v1::Job& job) { queue_.Push(JobChanged{job}); }, stream);
    queue_.Push(WatchEnded{status});
  });
  while (leave_with_ < 0) {
    for (const Event& event : queue_.TakeAll()) {
      std::visit([this](const auto& e) { Handle(e); }, event);
    }
    Draw();
    if ((HasEnded(job_.state()) || HasLeft()) && OutputIsComplete()) break;
    if (leave_with_ < 0) Wait();
  }
  for (auto& [generation, reader] : readers_) reader.thread.request_stop();
  for (std::jthread& thread : threads_) thread.request_stop();
  const int code = Finish();
  return options_.json ? PrintJson(code) : code;
}

int Follower::PrintJson(int code) const {
  OutputStream out(STDOUT_FILENO);
  out.Write(ToJson(job_));
  out.Flush();
  if (out.reader_gone()) return kExitSignalBase + SIGPIPE;
  if (out.error() == 0) return code;
  Say(fmt::format("standard output cannot be written: {}", std::strerror(out.error())));
  return code == kExitOk ? kExitOutputLost : code;
}

void Follower::Wait() {
  std::vector<pollfd> fds = {{queue_.fd(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
  for (const auto& needed : options_.needed) fds.push_back({needed.ended_fd, POLLIN, 0});
  const bool ticking = screen_.ticking() || drain_until_.count() != 0;
  const bool waiting = std::any_of(readers_.begin(), readers_.end(), [](const auto& reader) {
    return reader.second.pipe->waiting();
  });
  const auto time = waiting ? kRelease : ticking ? kRedraw : kRedraw * 10;
  ::poll(fds.data(), fds.size(), static_cast<int>(time.count()));
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info))
    OnSignal(static_cast<int>(info.ssi_signo));
  for (size_t i = 0; i < options_.needed.size(); ++i) {
    if (fds[i + 2].revents == 0 || leave_with_ >= 0) continue;
    screen_.Say(options_.needed[i].describe_end());
    leave_with_ = SignalOr(kExitJobFailed);
  }
}

void Follower::Handle(const JobChanged& event) {
  const v1::JobState before = job_.state();
  if (event.job.restarts() > job_.restarts() && event.job.has_failure()) {
    screen_.Say(fmt::format("{}: restart {} of {}: {}", job_.job_id(), event.job.restarts(),
                            event.job.spec().max_restarts(), event.job.failure().message()));
  }
  if (const std::string hang = HangLine(job_.hang(), event.job); !hang.empty()) screen_.Say(hang);
  job_ = event.job;
  if (const std::string line = world_changes_.Update(job_); !line.empty()) screen_.Say(line);
  if (before != job_.state() && job_.state() == v1::JOB_STATE_RUNNING) Trace("running");
  if (const std::string waiting = WaitingLine(job_); waiting != waiting_said_) {
    waiting_said_ = waiting;
    if (!waiting.empty()) screen_.Say(waiting);
  }
  meter_.Update(job_, SteadyNow());
  if (HasRun(job_)) StartReader();
  if ((HasEnded(job_.state()) || HasLeft()) && drain_until_.count() == 0) {
    Trace("ended");
    drain_until_ = SteadyNow() + DrainTime(job_);
  }
}

void Follower::StartReader() {
  const uint64_t generation = job_.generation();
  if (readers_.count(generation) != 0) return;
  Reader& reader = readers_[generation];
  reader.view = std::make_unique<OutputView>(options_.view);
  std::vector<int> ranks;
  if (!options_.only_node.empty()) {
    const std::map<int, int> here = RanksHere();
    for (const auto& [rank, local_rank] : here) ranks.push_back(rank);
    *reader.view = OfNode(options_.view, here);
  }
  reader.pipe =
      std::make_unique<OutputPipe>(screen_, static_cast<int>(job_.world_size()), *reader.view);
  if (ranks.empty() && !options_.only_node.empty()) {
    reader.ended = true;
    return;
  }
  reader.thread =
      std::jthread([this, generation, ranks, job_id = job_.job_id()](const std::stop_token& stop) {
        LogQuery query;
        query.job_id = job_id;
        query.ranks = ranks;
        query.follow = true;
        query.generation = generation;
        query.started_there = true;
        const absl::Status status = client_.ReadLogs(
            query, [&](const v1::ReadLogsResponse& chunk) { queue_.Push(Output{chunk}, stop); },
            StreamOptions{stop, options_.patience, nullptr});
        queue_.Push(OutputEnded{generation, status});
      });
}

std::map<int, int> Follower::RanksHere() const {
  std::map<int, int> out;
  for (const v1::RankStatus& rank : job_.ranks()) {
    if (rank.node_name() != options_.only_node) continue;
    out[rank.assignment().rank()] = rank.assignment().local_rank();
  }
  return out;
}

void Follower::Handle(const Output& event) {
  const auto reader = readers_.find(event.chunk.generation());
  if (reader != readers_.end()) reader->second.pipe->Append(event.chunk);
  // A slow end is not a broken one: as long as output comes, wait for the rest.
  if (drain_until_.count() != 0) drain_until_ = SteadyNow() + DrainTime(job_);
}

void Follower::Handle(const OutputEnded& event) {
  Reader& reader = readers_[event.generation];
  reader.pipe->Finish();
  reader.ended = true;
  Trace("output complete");
  if (!event.status.ok() && !absl::IsCancelled(event.status) &&
      !absl::IsFailedPrecondition(event.status) && !SaysLost(event.status)) {
    screen_.Say(fmt::format("some output of the ranks is missing: {}",
                            std::string(event.status.message())));
  }
}

void Follower::Handle(const WatchEnded& event) {
  watch_ended_ = true;
  if (HasEnded(job_.state())) return;
  if (event.status.ok()) {
    // Nothing more would come: leave the question open instead of waiting for ever.
    screen_.Say(fmt::format("the coordinator says no more about {}, which was {}", job_.job_id(),
                            StateName(job_.state())));
    leave_with_ = SignalOr(kExitTryAgain);
    return;
  }
  if (SaysLost(event.status)) {
    screen_.Say(options_.coordinator_lost());
    leave_with_ = SignalOr(kExitJobFailed);
    return;
  }
  screen_.Say(std::string(event.status.message()));
  leave_with_ = SignalOr(client::ExitCodeOf(event.status));
}

void Follower::Handle(const Interrupted& event) {
  if (options_.coordinator_lost) return;
  screen_.Say(fmt::format("{}: trying again for {}", std::string(event.status.message()),
                          options_.patience >= std::chrono::minutes(1) ? "a minute" : "a moment"));
}

void Follower::Handle(const CancelAnswered& event) {
  if (event.status.ok() || HasEnded(job_.state())) return;
  screen_.Say(
      fmt::format("could not cancel {}: {}", job_.job_id(), std::string(event.status.message())));
  leave_with_ = kExitSignalBase + first_signal_;
}

void Follower::Handle(const SignalAnswered& event) {
  if (event.status.ok() || HasEnded(job_.state())) return;
  screen_.Say(fmt::format("{} was not passed on: {}", SignalName(event.signal),
                          std::string(event.status.message())));
}

void Follower::OnSignal(int signal) {
  if (signal == SIGTSTP) return Pause();
  if (options_.signals.Forwards(signal)) return Send(signal, {});
  if (options_.signals.Leaves(signal)) return Leave(signal);
  if (signal == SIGHUP && options_.detach_on_hangup) {
    leave_with_ = kExitSignalBase + signal;
    return;
  }
  if (first_signal_ == 0) first_signal_ = signal;
  ++signals_seen_;
  if (signals_seen_ == 1) {
    screen_.Say(fmt::format("cancelling {}; once more to kill it at once", job_.job_id()));
    Cancel(false, (signal == SIGINT ? "by Ctrl-C" : "by " + SignalName(signal)) + Here(),
           FirstSignalOfRanks(signal));
  } else if (signals_seen_ == 2) {
    screen_.Say(fmt::format("killing {}", job_.job_id()));
    Cancel(true, "by a second " + SignalName(signal) + Here(), 0);
  } else {
    // Without waiting: a cluster of this command stops its ranks when this process is gone.
    screen_.RemoveRows();
    screen_.Flush();
    std::_Exit(kExitSignalBase + first_signal_);
  }
}

void Follower::Cancel(bool now, const std::string& reason, int first_signal) {
  threads_.emplace_back([this, now, reason, first_signal, job_id = job_.job_id()] {
    queue_.Push(CancelAnswered{client_.Cancel(job_id, now, reason, first_signal).status()});
  });
}

void Follower::Send(int signal, const std::vector<int>& ranks) {
  threads_.emplace_back([this, signal, ranks, job_id = job_.job_id()] {
    queue_.Push(SignalAnswered{signal, client_.Signal(job_id, signal, ranks).status()});
  });
}

void Follower::Pause() {
  if (std::exchange(pausing_, true)) return;
  paused_.clear();
  paused_generation_ = job_.generation();
  for (const auto& [rank, local_rank] : RanksHere()) paused_.push_back(rank);
  if (paused_.empty() && !options_.only_node.empty()) {
    queue_.Push(PauseAnswered{absl::FailedPreconditionError("no rank of the job runs here")});
    return;
  }
  threads_.emplace_back([this, ranks = paused_, job_id = job_.job_id()] {
    queue_.Push(PauseAnswered{client_.Signal(job_id, SIGSTOP, ranks).status()});
  });
}

void Follower::Leave(int signal) {
  if (!options_.can_leave) {
    return screen_.Say(CannotLeave(job_.job_id(), options_.only_node.empty()));
  }
  if (std::exchange(leave_asked_, true)) return;
  if (signal == LeaveSignal()) return Handle(LeaveAnswered{absl::OkStatus()});
  threads_.emplace_back([this, signal] {
    const auto request = LeaveRequest(options_.only_node, "by " + SignalName(signal));
    queue_.Push(LeaveAnswered{client_.DrainNode(request).status()});
  });
}

void Follower::Handle(const LeaveAnswered& event) {
  leaves_ = event.status.ok();
  leave_asked_ = leaves_;
  left_waiting_ = leaves_ && Waits(job_);
  screen_.Say(leaves_ ? fmt::format("{} leaves {}", options_.only_node, job_.job_id())
                      : std::string(event.status.message()));
}

bool Follower::HasLeft() const {
  return left_waiting_ || (leaves_ && job_.state() == v1::JOB_STATE_RUNNING &&
                           !HasRanksOn(options_.only_node, job_));
}

void Follower::Handle(const PauseAnswered& event) {
  pausing_ = false;
  if (HasEnded(job_.state())) return;
  screen_.Say(
      event.status.ok()
          ? fmt::format("the ranks of {}{} are stopped; fg continues them", job_.job_id(), Here())
          : fmt::format("no rank was stopped: {}", std::string(event.status.message())));
  screen_.RemoveRows();
  screen_.Flush();
  StopThisProcess();
  if (!event.status.ok()) return;
  // Much may have happened meanwhile. Ranks of another generation were never stopped from here.
  const auto now = client_.Get(job_.job_id());
  if (!now.ok() || now->job().generation() == paused_generation_) Send(SIGCONT, paused_);
}

void Follower::Draw() {
  std::vector<std::string> rows;
  for (auto& [generation, reader] : readers_) reader.pipe->Release(&rows);
  screen_.SetRows(std::move(rows));
  if (!HasEnded(job_.state())) screen_.ShowProgress(job_.job_id(), meter_, SteadyNow());
  screen_.Draw(SteadyNow());
  screen_.Flush();
  // The reader of our standard output is gone: exit, as a shell pipeline expects.
  if (!screen_.alive() && leave_with_ < 0) {
    leave_with_ = kExitSignalBase + SIGPIPE;
    screen_.Say("nobody reads the output any more: " +
                (HasEnded(job_.state())   ? job_.job_id() + " was " + StateName(job_.state())
                 : options_.can_ask_later ? job_.job_id() + " goes on"
                                          : std::string("its ranks are ended")));
  }
}

bool Follower::OutputIsComplete() const {
  const bool ended =
      std::all_of(readers_.begin(), readers_.end(), [](const auto& r) { return r.second.ended; });
  return ended || SteadyNow() >= drain_until_;
}

int Follower::Finish() {
  for (auto& [generation, reader] : readers_) reader.pipe->Finish();
  screen_.RemoveRows();
  if (leave_with_ >= 0) return leave_with_;
  if (!screen_.draws_bar()) screen_.ShowProgress(job_.job_id(), meter_, SteadyNow());
  screen_.Flush();
  SayLost();
  if (HasLeft()) {
    screen_.Say(HasLeftLine(options_.only_node, job_));
    screen_.Flush();
    return kExitOk;
  }
  screen_.Write(Verdict(job_, options_.can_ask_later, screen_.error_style()));
  screen_.Flush();
  if (first_signal_ != 0 && job_.state() != v1::JOB_STATE_SUCCEEDED)
    return kExitSignalBase + first_signal_;
  const int code = client::ExitCodeOf(job_);
  return code == kExitOk && OutputWasLost() ? kExitOutputLost : code;
}

bool Follower::OutputWasLost() const {
  return screen_.lost() > 0 ||
         (options_.must_show_all &&
          std::any_of(readers_.begin(), readers_.end(),
                      [](const auto& reader) { return reader.second.pipe->lost() > 0; }));
}

void Follower::SayLost() {
  if (screen_.lost() == 0) return;
  screen_.Say(fmt::format("{} of output could not be written", FormatBytes(screen_.lost())));
}

}  // namespace

int Follow(Client& client, const v1::Job& job, const FollowOptions& options) {
  return Follower(client, job, options).Run();
}

}  // namespace meshrun::client
