// The daemon: its life, its session, and what it does with commands.
#include "tests/coordinator/simulation/host.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/job_spec.h"
#include "core/proto_time.h"
#include "tests/coordinator/simulation/world.h"

namespace meshrun::coordinator::simulation {
namespace {

constexpr milliseconds kFirstBackoff(20);
constexpr seconds kLongestBackoff(1);

}  // namespace

Host::Host(World& world, Options options) : world_(world), options_(std::move(options)) {}

SteadyNanos Host::Now() const { return options_.clock.Steady(world_.timeline.now()); }

// --- life ---

void Host::WhenAwake(std::function<void()> run) {
  if (!daemon_up_) return;
  if (world_.timeline.now() < stalled_until_) {
    deferred_.push_back(std::move(run));
  } else {
    run();
  }
}

void Host::Later(nanoseconds own_span, std::function<void()> run) {
  world_.timeline.After(options_.clock.TrueSpan(own_span),
                        [this, life = life_, run = std::move(run)]() mutable {
                          if (life == life_) WhenAwake(std::move(run));
                        });
}

void Host::StartDaemon() {
  if (daemon_up_ || !powered_) return;
  daemon_up_ = true;
  ++incarnation_;
  stalled_until_ = world_.timeline.now();
  draining_ = orphaned_ = open_ = false;
  term_ = 0;
  backoff_ = nanoseconds(0);
  last_heard_ = Now();
  if (world_.timeline.notes_wanted()) {
    world_.timeline.Note(fmt::format("{}: daemon incarnation {}", options_.name, incarnation_));
  }
  for (auto& [key, run] : runs_) {
    run.forgotten = false;
    run.prepared = true;
  }
  Connect();
  Tick(++ticks_);
}

void Host::EndDaemon(bool tell) {
  if (!daemon_up_) return;
  DropStream(tell);
  daemon_up_ = open_ = false;
  ++life_;
  deferred_.clear();
}

void Host::CrashDaemon(nanoseconds pause) {
  if (!daemon_up_) return;
  world_.timeline.Note(options_.name + ": daemon killed");
  EndDaemon(/*tell=*/true);
  LaterOnHost(pause, [this] { StartDaemon(); });
}

void Host::StallDaemon(nanoseconds span) {
  if (!daemon_up_) return;
  world_.timeline.Note(options_.name + ": daemon stopped for a while");
  stalled_until_ = std::max(stalled_until_, world_.timeline.now() + span);
  world_.timeline.At(stalled_until_, [this, life = life_] {
    while (life == life_ && world_.timeline.now() >= stalled_until_ && !deferred_.empty()) {
      const std::function<void()> run = std::move(deferred_.front());
      deferred_.pop_front();
      run();
    }
  });
}

void Host::Drain(nanoseconds pause) {
  WhenAwake([this, pause] {
    if (std::exchange(draining_, true)) return;
    world_.timeline.Note(options_.name + ": daemon drains");
    drained_pause_ = pause;
    SendHeartbeat();
    StopAll();
    EndWhenQuiet();
  });
}

void Host::EndWhenQuiet() {
  if (!draining_ || !daemon_up_) return;
  for (const auto& [key, run] : runs_) {
    if (!run.ended) return;
  }
  v1::OpenSessionRequest goodbye;
  goodbye.mutable_goodbye();
  Send({}, std::move(goodbye));
  EndDaemon(/*tell=*/true);
  LaterOnHost(drained_pause_, [this] { StartDaemon(); });
}

void Host::BreakSession() {
  WhenAwake([this] {
    if (stream_ == nullptr) return;
    DropStream(/*tell=*/true);
    OnSessionDone();
  });
}

void Host::SetBlocked(bool up, bool down) {
  link.up_blocked = up;
  link.down_blocked = down;
  world_.coordinator.Replan();
}

void Host::KeepRanksAlive(nanoseconds span) {
  ranks_kept_until_ = std::max(ranks_kept_until_, world_.timeline.now() + span);
}

void Host::RefusePrepare(std::string error, bool bad_command) {
  prepare_error_ = std::move(error);
  bad_command_ = bad_command;
}

// --- session ---

void Host::Connect() {
  if (!daemon_up_ || stream_ != nullptr) return;
  stream_began_ = Now();
  stream_ =
      world_.coordinator.Open(*this, link, [this, life = life_, id = stream_id_ + 1](auto item) {
        if (life != life_) return;
        WhenAwake([this, id, item = std::move(item)]() mutable { OnItem(id, std::move(item)); });
      });
  ++stream_id_;
  v1::OpenSessionRequest hello = Hello();
  hello.mutable_fence()->set_term(term_);
  hello.mutable_fence()->set_incarnation(incarnation_);
  stream_->up.Put(std::move(hello));
}

void Host::DropStream(bool tell) {
  if (stream_ == nullptr) return;
  if (tell) {
    stream_->up.Put(absl::CancelledError("the worker has given this session up"));
  } else {
    stream_->up.Cut();
  }
  stream_->down.Cut();
  // Not from within its own delivery.
  world_.timeline.After(nanoseconds(0), [stream = std::move(stream_)] {});
  stream_ = nullptr;
}

void Host::OnItem(uint64_t stream, Wire<v1::OpenSessionResponse>::Item item) {
  if (stream_ == nullptr || stream != stream_id_) return;
  if (std::holds_alternative<absl::Status>(item)) {
    DropStream(/*tell=*/true);
    OnSessionDone();
    return;
  }
  const v1::OpenSessionResponse& message = std::get<v1::OpenSessionResponse>(item);
  if (message.fence().term() < term_) {
    DropStream(/*tell=*/true);
    OnSessionDone();
    return;
  }
  last_heard_ = Now();
  if (message.has_welcome()) {
    OnWelcome(message);
  } else if (open_ && !message.has_heartbeat_reply() &&
             (message.fence().incarnation() == 0 ||
              message.fence().incarnation() == incarnation_)) {
    Handle(message);
  }
}

void Host::OnSessionDone() {
  open_ = false;
  if (!daemon_up_) return;
  backoff_ = std::clamp<nanoseconds>(backoff_ * 3 / 2, kFirstBackoff, kLongestBackoff);
  Later(backoff_, [this] { Connect(); });
}

void Host::OnWelcome(const v1::OpenSessionResponse& message) {
  term_ = message.fence().term();
  open_ = true;
  backoff_ = nanoseconds(0);
  for (const auto& [key, run] : runs_) {
    if (run.started && !run.ended) SendStarted(key, run);
    for (const auto& [number, rank] : run.ranks) {
      if (rank.exited) SendExit(key, rank.exit);
    }
    if (run.ended) SendEnded(key);
  }
  Tick(++ticks_);
}

void Host::Tick(uint64_t ticks) {
  if (ticks != ticks_) return;
  Later(CoordinatorProcess::kHeartbeat, [this, ticks] { Tick(ticks); });
  for (auto& [key, run] : runs_) run.pinged = Now();
  const bool orphaned = Now() - last_heard_ > options_.orphan_timeout;
  if (orphaned && !orphaned_) StopAll();
  orphaned_ = orphaned;
  if (stream_ == nullptr) return;
  if (Now() - std::max(last_heard_, stream_began_) > CoordinatorProcess::kLease) {
    DropStream(/*tell=*/true);
    OnSessionDone();
    return;
  }
  SendHeartbeat();
}

void Host::SendHeartbeat() {
  v1::OpenSessionRequest message;
  message.mutable_heartbeat()->set_sequence(++sequence_);
  message.mutable_heartbeat()->set_draining(draining_);
  Send({}, std::move(message));
}

void Host::Send(const GenerationKey& key, v1::OpenSessionRequest message) {
  if (!open_) return;
  // Of a generation that the coordinator does not want only its end is told.
  if (const auto run = runs_.find(key);
      run != runs_.end() && run->second.forgotten && !message.has_generation_ended()) {
    return;
  }
  v1::Fence& fence = *message.mutable_fence();
  fence.set_term(term_);
  fence.set_incarnation(incarnation_);
  fence.set_job_id(key.first);
  fence.set_generation(key.second);
  stream_->up.Put(std::move(message));
}

v1::OpenSessionRequest Host::Hello() const {
  v1::OpenSessionRequest message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_node_id(node_id());
  hello.set_name(options_.name);
  hello.set_address(options_.name + ".cluster");
  hello.set_version("simulated");
  hello.set_draining(draining_);
  hello.mutable_resources()->set_slots(options_.slots);
  hello.mutable_resources()->set_cores(options_.slots);
  hello.mutable_resources()->set_memory_bytes(uint64_t{64} << 30);
  for (uint32_t i = 0; i < options_.gpus; ++i) {
    hello.mutable_resources()->add_gpus()->set_index(i);
  }
  for (const auto& [key, run] : runs_) {
    v1::RunningGeneration& running = *hello.add_running();
    running.set_job_id(key.first);
    running.set_generation(key.second);
    running.set_ended(run.ended);
    for (const auto& [number, rank] : run.ranks) {
      if (!run.started) continue;
      if (rank.exited) {
        *running.add_exits() = rank.exit;
      } else {
        running.add_running_ranks(number);
      }
    }
  }
  return message;
}

// --- generations ---

void Host::Handle(const v1::OpenSessionResponse& message) {
  const GenerationKey key{message.fence().job_id(), message.fence().generation()};
  if (message.has_prepare()) {
    Prepare(message);
    return;
  }
  const auto it = runs_.find(key);
  if (it == runs_.end()) {
    // The coordinator must know that nothing runs here.
    if (message.has_start() || message.has_stop()) SendEnded(key);
    return;
  }
  Run& run = it->second;
  if (message.has_start()) {
    if (run.ended) {
      SendEnded(key);
    } else {
      Start(key, run);
    }
  } else if (message.has_stop()) {
    Stop(key, run, FromProto(message.stop().grace()));
  } else if (message.has_forget()) {
    run.forgotten = true;
    if (run.ended) {
      runs_.erase(it);
    } else {
      Kill(key);
    }
  }
}

void Host::Prepare(const v1::OpenSessionResponse& message) {
  const v1::Prepare& prepare = message.prepare();
  const GenerationKey key{message.fence().job_id(), message.fence().generation()};
  world_.ledger.OnPrepare(node_id(), message.fence(), prepare);
  if (const auto known = runs_.find(key); known != runs_.end()) {
    if (known->second.prepared || known->second.ended) AnswerPrepare(key);
    return;
  }
  if (draining_ || !prepare_error_.empty()) {
    AnswerPrepare(key);
    return;
  }
  Run& run = runs_[key];
  run.kill_grace = KillGrace(prepare.spec());
  run.world_size = static_cast<int>(prepare.world_size());
  run.work = prepare.spec().name();
  for (const v1::RankAssignment& assignment : prepare.ranks()) {
    RankProcess& rank = run.ranks[assignment.rank()];
    rank.generation = key;
    rank.rank = assignment.rank();
    rank.world_size = run.world_size;
    rank.work = run.work;
    run.gpus[rank.rank] = {assignment.gpus().begin(), assignment.gpus().end()};
  }
  run.pinged = Now();
  WatchLease(key);
  Later(world_.random.Between(milliseconds(1), milliseconds(40)), [this, key] {
    const auto it = runs_.find(key);
    if (it == runs_.end() || std::exchange(it->second.prepared, true)) return;
    AnswerPrepare(key);
  });
}

void Host::AnswerPrepare(const GenerationKey& key) {
  v1::OpenSessionRequest message;
  v1::PrepareResult& result = *message.mutable_prepare_result();
  const auto run = runs_.find(key);
  if (draining_) {
    result.set_error("the worker is stopping");
    result.set_draining(true);
  } else if (run == runs_.end()) {
    result.set_error(prepare_error_);
    result.set_bad_command(bad_command_);
  } else if (run->second.ended) {
    result.set_error("the generation has ended here");
  } else {
    result.set_ok(true);
    result.set_master_port(static_cast<uint32_t>(20'000 + world_.random.Below(1'000)));
  }
  Send(key, std::move(message));
}

void Host::SendStarted(const GenerationKey& key, const Run& run) {
  v1::OpenSessionRequest message;
  auto& pids = *message.mutable_ranks_started()->mutable_pids();
  for (const auto& [number, rank] : run.ranks) pids[number] = static_cast<int64_t>(rank.number);
  WhenAwake([this, key, message = std::move(message)]() mutable { Send(key, std::move(message)); });
}

void Host::SendExit(const GenerationKey& key, const v1::RankExit& exit) {
  v1::OpenSessionRequest message;
  *message.mutable_rank_exit() = exit;
  WhenAwake([this, key, message = std::move(message)]() mutable { Send(key, std::move(message)); });
}

void Host::SendEnded(const GenerationKey& key) {
  v1::OpenSessionRequest message;
  message.mutable_generation_ended();
  WhenAwake([this, key, message = std::move(message)]() mutable { Send(key, std::move(message)); });
}

void Host::Report(const RankProcess& process, int64_t step) {
  v1::OpenSessionRequest message;
  (*message.mutable_progress_report()->mutable_progress())[process.rank].set_step(step);
  WhenAwake([this, key = process.generation, message = std::move(message)]() mutable {
    Send(key, std::move(message));
  });
}

void Host::StopAll() {
  std::vector<GenerationKey> keys;
  for (const auto& [key, run] : runs_) keys.push_back(key);
  for (const GenerationKey& key : keys) {
    Run& run = runs_.at(key);
    Stop(key, run, run.kill_grace);
  }
}

}  // namespace meshrun::coordinator::simulation
