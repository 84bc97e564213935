#include "worker/generations/generation.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/clock.h"
#include "core/job_spec.h"
#include "core/log.h"
#include "core/os/files.h"
#include "core/os/process.h"
#include "core/proto_time.h"
#include "core/rank_exit.h"
#include "core/status.h"
#include "worker/supervisor/process_tree.h"
#include "worker/supervisor/report.h"
#include "worker/supervisor/unix_socket.h"

namespace meshrun::worker {
namespace {

// Pauses between searches for processes that a dead supervisor has left: short at first, then
// longer, about ten seconds in all.
constexpr std::chrono::milliseconds kKillAgain(20);
constexpr std::chrono::milliseconds kKillAgainAtMost(1000);
constexpr int kKillPasses = 15;

}  // namespace

std::unique_ptr<Generation> Generation::Create(EventLoop& loop, FileTasks& files,
                                               Preparation& preparation, Handler handler) {
  std::unique_ptr<Generation> generation(new Generation(loop, files, preparation.plan().record,
                                                        preparation.plan().paths.directory,
                                                        std::move(handler)));
  generation->WatchChild(preparation.pid);
  generation->link_ = std::make_unique<SupervisorLink>(loop, std::move(preparation.connection),
                                                       generation->LinkHandler());
  return generation;
}

absl::StatusOr<std::unique_ptr<Generation>> Generation::Adopt(EventLoop& loop, FileTasks& files,
                                                              const std::string& directory,
                                                              Handler handler) {
  MESHRUN_ASSIGN_OR_RETURN(const std::string content, os::ReadFile(directory + "/record"));
  v1::GenerationRecord record;
  if (!record.ParseFromString(content)) {
    return absl::DataLossError(fmt::format("{}/record is damaged", directory));
  }
  std::unique_ptr<Generation> generation(
      new Generation(loop, files, std::move(record), directory, std::move(handler)));
  generation->started_ = generation->record_.has_start();
  if (!generation->Connect().ok()) {
    // Later: the table must know the generation before it is told of its end.
    loop.Post([g = generation.get(), alive = std::weak_ptr<bool>(generation->alive_)] {
      if (!alive.expired()) g->OnSupervisorGone();
    });
  }
  return generation;
}

Generation::Generation(EventLoop& loop, FileTasks& files, v1::GenerationRecord record,
                       std::string directory, Handler handler)
    : loop_(loop),
      files_(files),
      record_(std::move(record)),
      directory_(std::move(directory)),
      handler_(std::move(handler)) {}

Generation::~Generation() = default;

absl::Status Generation::Connect() {
  MESHRUN_ASSIGN_OR_RETURN(link_,
                           SupervisorLink::Connect(loop_, directory_ + "/sup.sock", LinkHandler()));
  return absl::OkStatus();
}

SupervisorLink::Handler Generation::LinkHandler() {
  return {.on_message = [this](const v1::SupervisorResponse& response) { OnMessage(response); },
          .on_closed = [this] { OnSupervisorGone(); }};
}

void Generation::OffLoop(std::function<void()> work, std::function<void()> done) {
  files_.Run(fence().job_id(), std::move(work),
             [alive = std::weak_ptr<bool>(alive_), done = std::move(done)] {
               if (!alive.expired()) done();
             });
}

void Generation::WatchChild(pid_t pid) {
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return;
  // The child is waited for, whether or not this generation is still known.
  auto owned = std::make_shared<os::UniqueFd>(fd);
  loop_.Watch(fd, POLLIN, [&loop = loop_, pid, owned](short) {
    if (::waitpid(pid, nullptr, WNOHANG) == 0) return;
    loop.Unwatch(owned->get());
  });
}

void Generation::Start(const v1::Start& start) {
  if (started_ || ended_) return;
  started_ = true;
  *record_.mutable_start() = start;
  // Written first: the ranks may ask a restarted daemon for it.
  auto written = std::make_shared<absl::Status>();
  OffLoop([directory = directory_, record = record_,
           written] { *written = WriteRecord(directory, record); },
          [this, written] {
            if (!written->ok()) {
              log::Warning(
                  "cannot write a generation's record: a restarted daemon would not find it",
                  {{"error", *written}});
            }
            SendStart();
          });
}

void Generation::SendStart() {
  v1::SupervisorRequest request;
  auto& env = *request.mutable_start()->mutable_env();
  env["MASTER_ADDR"] = record_.start().master_addr();
  env["MASTER_PORT"] = std::to_string(record_.start().master_port());
  if (link_) link_->Send(request);
}

void Generation::Stop(std::chrono::nanoseconds grace, const std::string& reason) {
  if (ended_) return;
  if (!stopping_) {
    stopping_ = true;
    stop_reason_ = reason;
    const auto watchers = watchers_;
    for (GenerationWatcher* const watcher : watchers) watcher->OnStopping(reason);
  }
  v1::SupervisorRequest request;
  *request.mutable_stop()->mutable_grace() = ToProtoDuration(grace);
  if (link_) link_->Send(request);
}

void Generation::Discard() {
  ended_ = true;
  v1::SupervisorRequest request;
  *request.mutable_stop()->mutable_grace() = ToProtoDuration(std::chrono::nanoseconds(0));
  if (link_) link_->Send(request);
  request.mutable_release();
  if (link_) link_->Send(request);
}

void Generation::Ping() {
  v1::SupervisorRequest request;
  request.mutable_ping();
  if (link_ && !ended_) link_->Send(request);
}

void Generation::OnMessage(const v1::SupervisorResponse& response) {
  switch (response.message_case()) {
    case v1::SupervisorResponse::kState:
      TakeState(response.state());
      break;
    case v1::SupervisorResponse::kStarted:
      pids_ = {response.started().pids().begin(), response.started().pids().end()};
      handler_.on_started();
      break;
    case v1::SupervisorResponse::kRankExit:
      TakeExit(response.rank_exit());
      break;
    case v1::SupervisorResponse::kProgress:
      for (const auto& [rank, progress] : response.progress().progress())
        MergeRankProgress(rank, progress);
      break;
    case v1::SupervisorResponse::kEnded:
      End();
      break;
    default:
      break;
  }
}

void Generation::TakeState(const v1::SupervisorState& state) {
  started_ |= state.started();
  pids_ = {state.pids().begin(), state.pids().end()};
  for (const v1::RankExit& exit : state.exits()) exits_.emplace(exit.rank(), exit);
  // The daemon that wrote the record ended before its supervisor got the start.
  if (!state.started() && record_.has_start()) SendStart();
  if (!prepared_ && !state.searching()) {
    if (!state.found().error().empty() && !state.started()) {
      handler_.on_unprepared(state.found());
      return;
    }
    prepared_ = true;
    handler_.on_prepared();
  }
  if (state.ended()) End();
}

void Generation::TakeExit(const v1::RankExit& exit) {
  if (!exits_.emplace(exit.rank(), exit).second) return;
  ClearWaiting(exit.rank());
  handler_.on_exit(exit);
  // The coordinator tells all ranks of the job. This host's ranks are told here, even while there
  // is no coordinator.
  v1::PeerNews news;
  if (ExitedCleanly(exit)) {
    news.add_left(exit.rank());
  } else {
    v1::RankLost& lost = *news.add_lost();
    lost.set_rank(exit.rank());
    lost.set_reason(PeerEndSentence(exit, /*node_name=*/""));
  }
  Tell(news);
}

void Generation::Tell(const v1::PeerNews& news) {
  for (const v1::RankLost& lost : news.lost()) lost_[lost.rank()] = lost;
  left_.insert(news.left().begin(), news.left().end());
  const auto watchers = watchers_;
  for (GenerationWatcher* const watcher : watchers) watcher->OnNews(news);
}

void Generation::AskForFlightRecords(uint64_t request) {
  const auto watchers = watchers_;
  for (GenerationWatcher* const watcher : watchers) watcher->OnFlightRecordWanted(request);
}

void Generation::OnSupervisorGone() {
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
        log::Warning("the supervisor is gone: killing what it has left",
                     {{"job", fence().job_id()}, {"generation", fence().generation()}});
        KillLeftBehind(0);
      });
}

void Generation::KillLeftBehind(int pass) {
  if (ended_) return;
  auto killed = std::make_shared<int>(0);
  // The environment of a process that a file system holds may be held, too.
  OffLoop(
      [token = "MESHRUN_TOKEN=" + record_.token(), killed] { *killed = KillByEnvironment(token); },
      [this, pass, killed] { OnLeftBehindKilled(pass, *killed); });
}

void Generation::OnLeftBehindKilled(int pass, int killed) {
  // Once more after a pass that found nothing: a process shows no environment while it becomes
  // another program.
  if (pass == 0 || (killed > 0 && pass < kKillPasses)) {
    const auto pause = std::min(kKillAgain * (1 << pass), kKillAgainAtMost);
    loop_.After(pause, [this, pass, alive = std::weak_ptr<bool>(alive_)] {
      if (!alive.expired()) KillLeftBehind(pass + 1);
    });
    return;
  }
  if (killed > 0) {
    log::Warning(
        "processes that a dead supervisor has left cannot be killed",
        {{"job", fence().job_id()}, {"generation", fence().generation()}, {"processes", killed}});
  }
  EndWithoutSupervisor({});
}

void Generation::EndWithoutSupervisor(const v1::SupervisorState& last) {
  if (ended_) return;
  for (const v1::RankExit& exit : last.exits()) TakeExit(exit);
  if (started_) {
    for (const v1::RankAssignment& rank : record_.prepare().ranks()) {
      if (exits_.contains(rank.rank())) continue;
      v1::RankExit exit;
      exit.set_rank(rank.rank());
      exit.set_signal(SIGKILL);
      exit.set_teardown(stopping_);
      exit.set_error_message("the supervisor of this rank died, and the rank with it");
      exit.set_at_unix_nanos(Clock::Real().WallNow().count());
      TakeExit(exit);
    }
  }
  End();
}

void Generation::End() {
  if (ended_) return;
  ended_ = true;
  // Nothing runs, and the file "final" has the exits: the supervisor may end.
  v1::SupervisorRequest request;
  request.mutable_release();
  if (link_) link_->Send(request);
  const auto watchers = watchers_;
  for (GenerationWatcher* const watcher : watchers) watcher->OnEnded();
  handler_.on_ended();
}

std::chrono::nanoseconds Generation::kill_grace() const {
  return KillGrace(record_.prepare().spec());
}

bool Generation::RankMayWrite(int rank) const {
  return !ended_ && FindRank(rank) != nullptr && !exits_.contains(rank);
}

const v1::RankAssignment* Generation::FindRank(int rank) const {
  for (const v1::RankAssignment& assignment : record_.prepare().ranks()) {
    if (assignment.rank() == rank) return &assignment;
  }
  return nullptr;
}

v1::RunningGeneration Generation::Running() const {
  v1::RunningGeneration out;
  out.set_job_id(fence().job_id());
  out.set_generation(fence().generation());
  out.set_ended(ended_);
  for (const auto& [rank, pid] : pids_) {
    if (!exits_.contains(rank)) out.add_running_ranks(rank);
  }
  for (const auto& [rank, exit] : exits_) *out.add_exits() = exit;
  return out;
}

void Generation::MergeRankProgress(int rank, const v1::Progress& progress) {
  MergeProgress(progress, &progress_[rank]);
  progress_changed_.insert(rank);
  handler_.on_progress();
}

std::optional<v1::ProgressReport> Generation::TakeProgress() {
  if (progress_changed_.empty()) return std::nullopt;
  v1::ProgressReport report;
  for (const int rank : progress_changed_) (*report.mutable_progress())[rank] = progress_[rank];
  progress_changed_.clear();
  return report;
}

void Generation::OfferProgressAgain() {
  for (const auto& [rank, progress] : progress_) progress_changed_.insert(rank);
}

void Generation::AddWatcher(GenerationWatcher* watcher) {
  watchers_.insert(watcher);
  if (!lost_.empty() || !left_.empty()) {
    v1::PeerNews gone;
    for (const auto& [rank, lost] : lost_) *gone.add_lost() = lost;
    gone.mutable_left()->Add(left_.begin(), left_.end());
    watcher->OnNews(gone);
  }
  if (stopping_) watcher->OnStopping(stop_reason_);
  if (ended_) watcher->OnEnded();
}

}  // namespace meshrun::worker
