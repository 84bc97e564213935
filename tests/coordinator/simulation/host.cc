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
constexpr seconds kLeastBeside(1);

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
  draining_ = orphaned_ = number_is_welcomed_ = false;
  open_ = session_number_ = term_ = 0;
  hurry_until_ = SteadyNanos(0);
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
  DropStreams(tell);
  daemon_up_ = false;
  open_ = 0;
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
    if (attempts_.empty()) return;
    Leave(open_ != 0 ? open_ : attempts_.back().id);
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

Host::Attempt* Host::FindAttempt(uint64_t id) {
  const auto it = std::find_if(attempts_.begin(), attempts_.end(),
                               [id](const Attempt& attempt) { return attempt.id == id; });
  return it == attempts_.end() ? nullptr : &*it;
}

void Host::Connect() {
  ++reconnect_;
  ++beside_;
  if (!daemon_up_ || open_ != 0) return;
  if (number_is_welcomed_ || attempts_.empty()) {
    DropStreams(/*tell=*/true);
    ++session_number_;
    last_attempt_ = 0;
    number_is_welcomed_ = false;
  }
  Attempt attempt{.id = ++last_stream_, .number = ++last_attempt_, .began = Now()};
  attempt.stream =
      world_.coordinator.Open(*this, link, [this, life = life_, id = attempt.id](auto item) {
        if (life != life_) return;
        WhenAwake([this, id, item = std::move(item)]() mutable { OnItem(id, std::move(item)); });
      });
  v1::OpenSessionRequest hello = Hello();
  hello.mutable_hello()->set_session_number(session_number_);
  hello.mutable_hello()->set_attempt(attempt.number);
  hello.mutable_fence()->set_term(term_);
  hello.mutable_fence()->set_incarnation(incarnation_);
  for (const v1::RunningGeneration& running : hello.hello().running()) {
    if (!running.ended()) attempt.named.insert({running.job_id(), running.generation()});
  }
  attempt.stream->up.Put(std::move(hello));
  attempts_.push_back(std::move(attempt));
  Later(std::max<nanoseconds>(kLeastBeside, world_.coordinator.lease / 5), [this, n = beside_] {
    if (n == beside_) ConnectBeside();
  });
}

void Host::ConnectBeside() {
  if (open_ == 0 && Now() < hurry_until_) Connect();
}

void Host::DropStream(uint64_t id, bool tell) {
  Attempt* const attempt = FindAttempt(id);
  if (attempt == nullptr) return;
  if (tell) {
    attempt->stream->up.Put(absl::CancelledError("the worker has given this session up"));
  } else {
    attempt->stream->up.Cut();
  }
  attempt->stream->down.Cut();
  // Not from within its own delivery.
  world_.timeline.After(nanoseconds(0), [stream = std::move(attempt->stream)] {});
  std::erase_if(attempts_, [id](const Attempt& one) { return one.id == id; });
}

void Host::DropStreams(bool tell) {
  while (!attempts_.empty()) DropStream(attempts_.back().id, tell);
}

void Host::Leave(uint64_t id) {
  DropStream(id, /*tell=*/true);
  if (id == open_) {
    open_ = 0;
    if (!attempts_.empty()) hurry_until_ = last_heard_ + world_.coordinator.lease;
  }
  if (open_ == 0) OnSessionDone();
}

void Host::OnItem(uint64_t stream, Wire<v1::OpenSessionResponse>::Item item) {
  const Attempt* const attempt = FindAttempt(stream);
  if (attempt == nullptr) return;
  if (std::holds_alternative<absl::Status>(item)) {
    Leave(stream);
    return;
  }
  const v1::OpenSessionResponse& message = std::get<v1::OpenSessionResponse>(item);
  if (open_ != 0 && open_ != stream &&
      !(message.has_welcome() && attempt->number > FindAttempt(open_)->number)) {
    return;
  }
  if (message.fence().term() < term_) {
    Leave(stream);
    return;
  }
  last_heard_ = Now();
  if (message.has_welcome()) {
    answered_ = attempt->began;
    if (open_ != 0 && open_ != stream) DropStream(open_, /*tell=*/true);
    open_ = stream;
    OnWelcome(message);
    return;
  }
  if (const auto sent = sent_.find(message.heartbeat_reply().sequence());
      sent != sent_.end() && message.has_heartbeat_reply()) {
    answered_ = sent->second;
    sent_.erase(sent_.begin(), std::next(sent));
  }
  if (open_ != 0 && !message.has_heartbeat_reply() &&
      (message.fence().incarnation() == 0 || message.fence().incarnation() == incarnation_)) {
    Handle(message);
  }
}

void Host::OnSessionDone() {
  if (!daemon_up_) return;
  backoff_ = std::clamp<nanoseconds>(backoff_ * 3 / 2, kFirstBackoff, kLongestBackoff);
  Later(backoff_, [this, n = ++reconnect_] {
    if (n == reconnect_) Connect();
  });
}

void Host::OnWelcome(const v1::OpenSessionResponse& message) {
  term_ = message.fence().term();
  number_is_welcomed_ = true;
  hurry_until_ = SteadyNanos(0);
  ++reconnect_;
  sent_.clear();
  backoff_ = nanoseconds(0);
  named_ = FindAttempt(open_)->named;
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
  const nanoseconds lease = world_.coordinator.lease;
  const nanoseconds patience =
      std::min(lease, std::max(lease * 2 / 5, world_.coordinator.heartbeat * 3 / 2));
  if (open_ != 0 && Now() - last_heard_ >= patience) {
    hurry_until_ = last_heard_ + lease;
    Leave(open_);
    return;
  }
  SendHeartbeat();
  std::vector<uint64_t> old;
  for (const Attempt& attempt : attempts_) {
    if (attempt.id != open_ && Now() - attempt.began > lease) old.push_back(attempt.id);
  }
  for (const uint64_t id : old) Leave(id);
}

void Host::SendHeartbeat() {
  v1::OpenSessionRequest message;
  message.mutable_heartbeat()->set_sequence(++sequence_);
  message.mutable_heartbeat()->set_draining(draining_);
  if (open_ != 0) sent_[sequence_] = Now();
  Send({}, std::move(message));
}

void Host::Send(const GenerationKey& key, v1::OpenSessionRequest message) {
  if (open_ == 0) return;
  v1::Fence& fence = *message.mutable_fence();
  fence.set_term(term_);
  fence.set_incarnation(incarnation_);
  fence.set_job_id(key.first);
  fence.set_generation(key.second);
  FindAttempt(open_)->stream->up.Put(std::move(message));
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
  hello.mutable_resources()->set_memory_bytes(options_.memory_bytes);
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
    if (process.step >= 0 && process.generation == key.second)
      (*running.mutable_steps())[process.rank] = process.step;
    if (process.exited) {
      *running.add_exits() = process.exit;
    } else if (run.started) {
      running.add_running_ranks(process.rank);
      if (process.joined) {
        running.mutable_joined()->add_ranks(process.rank);
        if (process.announced) {
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
