#include "worker/generations/rank_processes.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/clock.h"
#include "core/env_entries.h"
#include "core/log.h"
#include "core/os/files.h"
#include "core/os/process_stat.h"
#include "core/proto_time.h"
#include "core/status.h"
#include "worker/supervisor/process_tree.h"

namespace meshrun::worker {
namespace {

// Pauses between searches for processes that a dead supervisor has left: short at first, then
// longer. After ten seconds or so a warning.
constexpr std::chrono::milliseconds kKillAgain(20);
constexpr std::chrono::milliseconds kKillAgainAtMost(1000);
constexpr int kWarnAfterPasses = 15;
constexpr int kFormerGenerations = 16;

template <typename Message>
ProcessName NameIn(const Message& message) {
  return {message.generation(), message.rank()};
}

void WarnOf(const absl::Status& limits) {
  if (!limits.ok()) log::Warning("cannot set the limits of a job", {{"error", limits}});
}

}  // namespace

std::shared_ptr<RankProcesses> RankProcesses::Create(EventLoop& loop, FileTasks& files,
                                                     Preparation& preparation, Handler handler) {
  std::shared_ptr<RankProcesses> processes(new RankProcesses(loop, files, preparation.plan().record,
                                                             preparation.plan().paths.directory,
                                                             std::move(handler)));
  *processes->record_.mutable_cgroup() = preparation.cgroup;
  processes->WatchChild(preparation.pid);
  processes->link_ = std::make_unique<SupervisorLink>(loop, std::move(preparation.connection),
                                                      processes->LinkHandler());
  return processes;
}

absl::StatusOr<std::shared_ptr<RankProcesses>> RankProcesses::Adopt(EventLoop& loop,
                                                                    FileTasks& files,
                                                                    const std::string& directory,
                                                                    Handler handler) {
  MESHRUN_ASSIGN_OR_RETURN(const std::string content, os::ReadFile(directory + "/record"));
  v1::ProcessesRecord record;
  if (!record.ParseFromString(content) || record.job_id().empty() || record.generations().empty()) {
    return absl::DataLossError(fmt::format("{}/record is damaged", directory));
  }
  std::shared_ptr<RankProcesses> processes(
      new RankProcesses(loop, files, std::move(record), directory, std::move(handler)));
  processes->inherited_ = true;
  if (!processes->Connect().ok()) {
    // Later: the table must know the processes before it is told of their end.
    loop.Post([p = processes.get(), alive = std::weak_ptr<bool>(processes->alive_)] {
      if (!alive.expired()) p->OnSupervisorGone();
    });
  }
  return processes;
}

RankProcesses::RankProcesses(EventLoop& loop, FileTasks& files, v1::ProcessesRecord record,
                             std::string directory, Handler handler)
    : loop_(loop),
      files_(files),
      record_(std::move(record)),
      directory_(std::move(directory)),
      handler_(std::move(handler)) {}

RankProcesses::~RankProcesses() = default;

absl::Status RankProcesses::Connect() {
  MESHRUN_ASSIGN_OR_RETURN(link_,
                           SupervisorLink::Connect(loop_, directory_ + "/sup.sock", LinkHandler()));
  return absl::OkStatus();
}

SupervisorLink::Handler RankProcesses::LinkHandler() {
  return {.on_message = [this](const v1::SupervisorResponse& response) { OnMessage(response); },
          .on_closed = [this] { OnSupervisorGone(); }};
}

void RankProcesses::OffLoop(std::function<void()> work, std::function<void()> done) {
  files_.Run(job_id(), std::move(work),
             [alive = std::weak_ptr<bool>(alive_), done = std::move(done)] {
               if (!alive.expired()) done();
             });
}

void RankProcesses::WatchChild(pid_t pid) {
  if (const auto stat = os::ReadProcessStat(pid)) supervisor_since_ = stat->start_ticks;
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return;
  // The child is waited for, whether or not these processes are still known.
  auto owned = std::make_shared<os::UniqueFd>(fd);
  loop_.Watch(fd, POLLIN, [&loop = loop_, pid, owned](short) {
    if (::waitpid(pid, nullptr, WNOHANG) == 0) return;
    loop.Unwatch(owned->get());
  });
}

void RankProcesses::Start(const v1::GenerationRecord& generation) {
  v1::SupervisorRequest request;
  v1::SupervisorStart& start = *request.mutable_start();
  start.set_generation(generation.fence().generation());
  *start.mutable_ranks() = generation.launches();
  SetEnv(*start.mutable_env(), "MASTER_ADDR", generation.start().master_addr());
  SetEnv(*start.mutable_env(), "MASTER_PORT", std::to_string(generation.start().master_port()));
  if (link_) link_->Send(request);
}

void RankProcesses::Stop(std::chrono::nanoseconds grace, int first_signal) {
  stopping_ = true;
  v1::SupervisorRequest request;
  *request.mutable_stop()->mutable_grace() = ToProtoDuration(grace);
  request.mutable_stop()->set_first_signal(first_signal);
  if (link_ && !ended_) link_->Send(request);
}

void RankProcesses::SetLimits(const v1::ResourceLimits& limits) {
  v1::ControlGroup& cgroup = *record_.mutable_cgroup();
  if (cgroup.hierarchies().empty() || ended_ ||
      cgroup.limits().SerializeAsString() == limits.SerializeAsString()) {
    return;
  }
  *cgroup.mutable_limits() = limits;
  OffLoop([cgroup] { WarnOf(ApplyLimits(cgroup)); }, [] {});
}

void RankProcesses::Signal(const std::vector<ProcessName>& names, int signal) {
  if (names.empty() || !link_ || ended_) return;
  v1::SupervisorRequest request;
  request.mutable_signal()->set_signal(signal);
  for (const ProcessName& name : names) {
    v1::SupervisedProcess& process = *request.mutable_signal()->add_processes();
    process.set_generation(name.generation);
    process.set_rank(name.rank);
  }
  link_->Send(request);
}

void RankProcesses::StopAlone(const std::vector<ProcessName>& names,
                              std::chrono::nanoseconds grace) {
  if (names.empty() || !link_ || ended_) return;
  v1::SupervisorRequest request;
  *request.mutable_stop()->mutable_grace() = ToProtoDuration(grace);
  for (const ProcessName& name : names) {
    v1::SupervisedProcess& process = *request.mutable_stop()->add_processes();
    process.set_generation(name.generation);
    process.set_rank(name.rank);
  }
  link_->Send(request);
}

void RankProcesses::KillNow() {
  if (ended_) return;
  Stop(std::chrono::nanoseconds(0));
  OffLoop(
      [token = "MESHRUN_TOKEN=" + record_.token(), cgroup = record_.cgroup()] {
        KillCgroup(cgroup);
        KillByEnvironment(token);
      },
      [] {});
}

void RankProcesses::Discard() {
  ended_ = true;
  v1::SupervisorRequest request;
  *request.mutable_stop()->mutable_grace() = ToProtoDuration(std::chrono::nanoseconds(0));
  if (link_) link_->Send(request);
  request.mutable_release();
  if (link_) link_->Send(request);
  OffLoop([cgroup = record_.cgroup()] { RemoveCgroup(cgroup); }, [] {});
}

void RankProcesses::Ping(const v1::SupervisorPing& ping) {
  v1::SupervisorRequest request;
  *request.mutable_ping() = ping;
  if (link_ && !ended_) link_->Send(request);
}

void RankProcesses::Save(const v1::GenerationRecord& generation,
                         std::function<void(const absl::Status&)> done, const std::string& first) {
  auto& generations = *record_.mutable_generations();
  const auto same = std::find_if(generations.begin(), generations.end(), [&](const auto& known) {
    return known.fence().generation() == generation.fence().generation();
  });
  if (same != generations.end()) {
    *same = generation;
  } else {
    *generations.Add() = generation;
  }
  Write(std::move(done), first);
}

void RankProcesses::Erase(const v1::GenerationRecord& generation, bool former) {
  auto& generations = *record_.mutable_generations();
  for (int i = 0; i < generations.size(); ++i) {
    if (generations[i].fence().generation() != generation.fence().generation()) continue;
    generations.DeleteSubrange(i, 1);
    break;
  }
  if (former) {
    v1::FormerGeneration& out = *record_.add_former();
    out.set_generation(generation.fence().generation());
    *out.mutable_ranks() = generation.prepare().ranks();
    if (record_.former_size() > kFormerGenerations) record_.mutable_former()->DeleteSubrange(0, 1);
  }
  // A record with a generation too many is read as well as one without it.
  Write(nullptr, "");
}

void RankProcesses::Write(std::function<void(const absl::Status&)> done, const std::string& first) {
  auto written = std::make_shared<absl::Status>();
  OffLoop(
      [directory = directory_, record = record_, first, written] {
        if (!first.empty()) *written = os::MakeDirectories(first, 0700);
        if (written->ok()) *written = WriteRecord(directory, record);
      },
      [this, written, done = std::move(done)] {
        if (!written->ok()) {
          log::Warning(
              "cannot write the record of rank processes: a restarted daemon would not find them",
              {{"job", job_id()}, {"error", *written}});
        }
        if (done) done(*written);
      });
}

void RankProcesses::OnMessage(const v1::SupervisorResponse& response) {
  switch (response.message_case()) {
    case v1::SupervisorResponse::kState:
      TakeState(response.state());
      break;
    case v1::SupervisorResponse::kStarted:
      for (const v1::SupervisedProcess& process : response.started().processes())
        processes_[NameIn(process)].pid = process.pid();
      handler_.on_started(*this, response.started().generation());
      break;
    case v1::SupervisorResponse::kRankExit:
      TakeExit(response.rank_exit());
      break;
    case v1::SupervisorResponse::kProgress:
      for (const v1::ProcessProgress& progress : response.progress().progress())
        handler_.on_progress(*this, NameIn(progress), progress);
      break;
    case v1::SupervisorResponse::kEnded:
      End();
      break;
    default:
      break;
  }
}

void RankProcesses::TakeState(const v1::SupervisorState& state) {
  // What turned the controllers off before this daemon's start has undone them.
  if (std::exchange(inherited_, false) && !state.ended())
    OffLoop([cgroup = record_.cgroup()] { WarnOf(ApplyLimits(cgroup)); }, [] {});
  for (const v1::SupervisedProcess& process : state.processes())
    processes_[NameIn(process)].pid = process.pid();
  for (const v1::RankExit& exit : state.exits()) {
    std::optional<v1::RankExit>& known =
        processes_[{exit.process_generation(), exit.process_rank()}].exit;
    if (!known) known = exit;
  }
  inherited_ping_ = state.ping();
  // The daemon that wrote the record ended before its supervisor got the start.
  for (const v1::GenerationRecord& generation : record_.generations()) {
    const auto& ranks = generation.prepare().ranks();
    const bool missing = std::any_of(ranks.begin(), ranks.end(), [&](const auto& rank) {
      return !processes_.contains(NameOf(rank, generation.fence().generation()));
    });
    if (generation.has_start() && missing && !state.ended()) Start(generation);
  }
  if (!ready_ && !state.searching()) {
    if (!state.found().error().empty() && !state.started()) {
      handler_.on_unready(*this, state.found());
      return;
    }
    ready_ = true;
    handler_.on_ready(*this);
  }
  if (state.ended()) End();
}

void RankProcesses::TakeExit(const v1::RankExit& exit) {
  const ProcessName name = {exit.process_generation(), exit.process_rank()};
  std::optional<v1::RankExit>& known = processes_[name].exit;
  if (known) return;
  known = exit;
  known->set_orphaned(orphaned_ && exit.teardown());
  handler_.on_exit(*this, name, *known);
}

void RankProcesses::OnSupervisorGone() {
  if (ended_) return;
  link_.reset();
  // What it wrote last, if anything.
  auto last = std::make_shared<std::optional<v1::SupervisorState>>();
  OffLoop(
      [path = directory_ + "/final", last] {
        const auto bytes = os::ReadFile(path);
        v1::SupervisorState state;
        if (bytes.ok() && state.ParseFromString(*bytes)) *last = std::move(state);
      },
      [this, last] {
        if (*last) {
          EndWithoutSupervisor(**last);
          return;
        }
        log::Warning("the supervisor is gone: killing what it has left", {{"job", job_id()}});
        KillLeftBehind(0);
      });
}

void RankProcesses::KillLeftBehind(int pass) {
  if (ended_) return;
  auto killed = std::make_shared<int>(0);
  // The environment of a process that a file system holds may be held, too.
  OffLoop(
      [token = "MESHRUN_TOKEN=" + record_.token(), cgroup = record_.cgroup(), killed,
       since = supervisor_since_, pass] {
        *killed = KillCgroup(cgroup) ? 1 : 0;
        // Without a cgroup nobody knows whose they are: this job does not wait for ever for them.
        if (cgroup.hierarchies().empty() && since.has_value()) {
          const int adopted = KillAdopted(*since);
          if (pass < kWarnAfterPasses) *killed += adopted;
        }
        *killed += KillByEnvironment(token);
      },
      [this, pass, killed] { OnLeftBehindKilled(pass, *killed); });
}

void RankProcesses::OnLeftBehindKilled(int pass, int killed) {
  // Once more after a pass that found nothing: a process shows no environment while it becomes
  // another program.
  if (pass == 0 || killed > 0) {
    if (pass == kWarnAfterPasses) {
      log::Warning("processes that a dead supervisor has left do not end: their slots stay taken",
                   {{"job", job_id()}, {"processes", killed}});
    }
    const auto pause = std::min(kKillAgain * (1 << std::min(pass, 6)), kKillAgainAtMost);
    loop_.After(pause, [this, pass, alive = std::weak_ptr<bool>(alive_)] {
      if (!alive.expired()) KillLeftBehind(pass + 1);
    });
    return;
  }
  EndWithoutSupervisor({});
}

void RankProcesses::EndWithoutSupervisor(const v1::SupervisorState& last) {
  if (ended_) return;
  for (const v1::RankExit& exit : last.exits()) TakeExit(exit);
  std::vector<ProcessName> unseen = Running();
  for (const v1::GenerationRecord& generation : record_.generations()) {
    if (!generation.has_start()) continue;
    for (const v1::RankAssignment& rank : generation.prepare().ranks()) {
      const ProcessName name = NameOf(rank, generation.fence().generation());
      if (!processes_.contains(name)) unseen.push_back(name);
    }
  }
  for (const ProcessName& name : unseen) {
    v1::RankExit exit;
    exit.set_rank(name.rank);
    exit.set_process_generation(name.generation);
    exit.set_process_rank(name.rank);
    exit.set_signal(SIGKILL);
    exit.set_teardown(stopping_);
    exit.set_error_message("the supervisor of this rank died, and the rank with it");
    exit.set_at_unix_nanos(Clock::Real().WallNow().count());
    TakeExit(exit);
  }
  End();
}

void RankProcesses::End() {
  if (ended_) return;
  ended_ = true;
  // Nothing runs, and the file "final" has the exits: the supervisor may end.
  v1::SupervisorRequest request;
  request.mutable_release();
  if (link_) link_->Send(request);
  OffLoop([cgroup = record_.cgroup()] { RemoveCgroup(cgroup); }, [] {});
  handler_.on_ended(*this);
}

bool RankProcesses::Runs(const ProcessName& name) const {
  const auto process = processes_.find(name);
  return process != processes_.end() && !process->second.exit;
}

const v1::RankExit* RankProcesses::FindExit(const ProcessName& name) const {
  const auto process = processes_.find(name);
  return process != processes_.end() && process->second.exit ? &*process->second.exit : nullptr;
}

int64_t RankProcesses::PidOf(const ProcessName& name) const {
  const auto process = processes_.find(name);
  return process == processes_.end() ? 0 : process->second.pid;
}

std::vector<ProcessName> RankProcesses::Running() const {
  std::vector<ProcessName> running;
  for (const auto& [name, process] : processes_) {
    if (!process.exit) running.push_back(name);
  }
  return running;
}

}  // namespace meshrun::worker
