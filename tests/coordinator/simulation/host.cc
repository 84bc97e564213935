// The daemon: its life, its session, and what it does with commands.
#include "tests/coordinator/simulation/host.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/state_machine/jobs.h"
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
  answered_.reset();
  sent_.clear();
  if (world_.timeline.notes_wanted()) {
    world_.timeline.Note(fmt::format("{}: daemon incarnation {}", options_.name, incarnation_));
  }
  for (auto& [key, run] : runs_) run.prepared = true;
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
  sent_.clear();
  sent_[0] = Now();
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
  // Welcome answers Hello, which has no number.
  const uint64_t sequence = message.has_welcome() ? 0 : message.heartbeat_reply().sequence();
  if (const auto sent = sent_.find(sequence);
      sent != sent_.end() && (message.has_welcome() || message.has_heartbeat_reply())) {
    answered_ = sent->second;
    sent_.erase(sent_.begin(), std::next(sent));
  }
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
    if (run.started && !run.ended) SendStarted(key);
    if (run.ended) SendEnded({key.first, std::max(key.second, run.ends_as)});
  }
  for (auto& [number, process] : processes_) {
    if (process.exited) {
      SendExit(process);
    } else if (process.joined) {
      Join(process);
      if (process.waits_in > 0) ReportWait(process, process.waits_in);
    }
  }
  Tick(++ticks_);
}

void Host::Tick(uint64_t ticks) {
  if (ticks != ticks_) return;
  Later(world_.coordinator.heartbeat, [this, ticks] { Tick(ticks); });
  Ping();
  const bool orphaned = Now() - last_heard_ > options_.orphan_timeout;
  if (orphaned && !orphaned_) StopAll();
  orphaned_ = orphaned;
  if (stream_ == nullptr) return;
  if (Now() - std::max(last_heard_, stream_began_) > world_.coordinator.lease) {
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
  if (open_) sent_[sequence_] = Now();
  Send({}, std::move(message));
}

void Host::Send(const GenerationKey& key, v1::OpenSessionRequest message) {
  if (!open_) return;
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
  hello.add_addresses(options_.name + ".cluster");
  hello.set_version("simulated");
  hello.set_draining(draining_);
  hello.mutable_resources()->set_slots(options_.slots);
  hello.mutable_resources()->set_cores(options_.slots);
  hello.mutable_resources()->set_memory_bytes(uint64_t{64} << 30);
  for (uint32_t i = 0; i < options_.gpus; ++i) {
    hello.mutable_resources()->add_gpus()->set_index(i);
  }
  if (options_.fence_after.has_value()) {
    *hello.mutable_fence_after() = ToProtoDuration(*options_.fence_after);
  }
  for (auto it = runs_.begin(); it != runs_.end(); ++it) {
    const auto next = std::next(it);
    const bool newest = next == runs_.end() || next->first.first != it->first.first;
    // An older one counts while its processes are being killed and none of them lives on.
    const bool counts = newest || (!it->second.ended && !next->second.kept);
    if (counts) *hello.add_running() = Describe(it->first, it->second);
  }
  return message;
}

v1::RunningGeneration Host::Describe(const GenerationKey& key, const Run& run) const {
  v1::RunningGeneration running;
  running.set_job_id(key.first);
  running.set_generation(key.second);
  running.set_ended(run.ended);
  running.set_started(run.started);
  for (const auto& [number, process] : processes_) {
    if (process.job_id != key.first) continue;
    // Before Start, those that are to live on are still part of an earlier generation.
    const bool part = process.generation == key.second ||
                      (!run.started && run.kept && process.generation < key.second);
    if (!part) continue;
    if (process.exited) {
      *running.add_exits() = process.exit;
    } else if (run.started) {
      running.add_running_ranks(process.rank);
      if (process.joined) {
        running.mutable_joined()->add_ranks(process.rank);
        if (world_.works[process.work].in_process) {
          running.mutable_joined()->add_in_process(process.rank);
        }
      }
    }
  }
  if (!run.started && run.kept) {
    for (const auto& [rank, seat] : run.seats) {
      if (!IsFresh(seat, key.second)) running.add_running_ranks(rank);
    }
  }
  return running;
}

void Host::Ping() {
  pinged_ = Now();
  // A daemon that has heard nothing since it was started does not know how long its host is good.
  if (answered_.has_value() && options_.fence_after.has_value()) {
    fence_at_ = *answered_ + *options_.fence_after;
  }
}

void Host::Say(const GenerationKey& key, v1::OpenSessionRequest message) {
  WhenAwake([this, key, message = std::move(message)]() mutable { Send(key, std::move(message)); });
}

}  // namespace meshrun::coordinator::simulation
