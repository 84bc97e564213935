#include "tests/coordinator/simulation/coordinator_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/proto_time.h"

namespace meshrun::coordinator::simulation {
namespace {

// The shell's loop turns at least so often.
constexpr nanoseconds kLongestWait = seconds(1);

// Between two tries to reach a shared state.
constexpr nanoseconds kRetry = milliseconds(500);

constexpr size_t kLongestNote = 240;

// Heartbeats and what watchers see say nothing new.
bool IsNoted(const Action& action) {
  const auto* const send = std::get_if<SendToSession>(&action);
  return (send == nullptr || !send->message.has_heartbeat_reply()) &&
         !std::holds_alternative<StreamItem>(action);
}

absl::Status Gone() { return absl::UnavailableError("the coordinator's process is gone"); }

}  // namespace

void CoordinatorProcess::Start() {
  ++life_;
  if (open_store) own_store_ = open_store();
  const auto term = store().BeginTerm();
  if (!term.ok()) return After(kRetry, &CoordinatorProcess::Start);
  term_ = *term;
  Restore();
}

void CoordinatorProcess::Restore() {
  auto loaded = store().Load();
  if (!loaded.ok()) return After(kRetry, &CoordinatorProcess::Restore);
  auto rows = *std::move(loaded);
  ResolveUnknown(rows);
  machine_ = std::make_unique<StateMachine>();
  inbox_.clear();
  turn_planned_ = committing_ = false;
  stalled_until_ = timeline_.now();
  v1::StateEvent event;
  v1::RestoreEvent& restore = *event.mutable_restore();
  restore.set_term(term_);
  restore.mutable_retention()->set_ended_jobs(keep_ended);
  *restore.mutable_retention()->mutable_ended_job_least_age() = ToProtoDuration(kKeepAtLeast);
  if (keep_lost.count() > 0) {
    *restore.mutable_retention()->mutable_lost_node_age() = ToProtoDuration(keep_lost);
  }
  restore.mutable_quarantine()->set_absences(quarantine_after);
  *restore.mutable_quarantine()->mutable_window() = ToProtoDuration(seconds(3600));
  *restore.mutable_lease() = ToProtoDuration(lease);
  *restore.mutable_heartbeat_interval() = ToProtoDuration(heartbeat);
  event.set_now_nanos(clock.Steady(timeline_.now()).count());
  *event.mutable_wall() = ToProtoTimestamp(clock.Wall(timeline_.now()));
  const size_t part_rows = 1 + rows.size() / 3;
  for (v1::StateRow& row : rows) {
    *restore.add_rows() = std::move(row);
    if (static_cast<size_t>(restore.rows_size()) < part_rows) continue;
    restore.set_more(true);
    machine_->Step(event);
    restore.clear_rows();
    restore.set_part(restore.part() + 1);
  }
  restore.set_more(false);
  event.set_end_of_batch(true);
  const Actions actions = machine_->Step(event);
  ++steps_;
  observer_.OnRestored(*machine_);
  LetReplacedOnesWrite();
  if (Commit(actions.rows)) PlanTick();
}

void CoordinatorProcess::Crash(nanoseconds pause) {
  if (!up()) return;
  if (timeline_.notes_wanted()) timeline_.Note("coordinator: its process is gone");
  ++crashes_;
  // Gone as far as others know.
  if (open_store && random_.OneIn(3)) replaced_.push_back({std::move(own_store_), term_});
  EndProcess();
  After(pause, &CoordinatorProcess::Start);
}

void CoordinatorProcess::EndProcess() {
  ++life_;
  machine_.reset();
  open_.clear();
  open_barriers_.clear();
  for (const auto& [id, stream] : streams_) {
    stream->up.Cut();
    stream->down.Break(Gone());
    Retire(stream);
  }
  for (auto& [id, call] : std::exchange(calls_, {})) {
    timeline_.After(Latency(call.link),
                    [answer = std::move(call.answer)] { answer(Gone(), nullptr); });
  }
}

void CoordinatorProcess::After(nanoseconds span, void (CoordinatorProcess::*next)()) {
  timeline_.After(span, [this, next, life = life_] {
    if (life == life_) (this->*next)();
  });
}

void CoordinatorProcess::Stall(nanoseconds span) {
  if (!up()) return;
  stalled_until_ = std::max(stalled_until_, timeline_.now() + span);
  timeline_.At(stalled_until_, [this, life = life_] {
    if (life == life_) PlanTurn();
  });
}

nanoseconds CoordinatorProcess::Latency(const Link* link) {
  if (link == nullptr) return milliseconds(1);
  return link->delay + random_.Between(nanoseconds(0), milliseconds(5));
}

std::shared_ptr<Stream> CoordinatorProcess::Open(Host& host, const Link& link,
                                                 Wire<v1::OpenSessionResponse>::Arrive at_worker) {
  const uint64_t id = next_id_++;
  auto stream = std::make_shared<Stream>(
      id, host, timeline_, random_, link,
      [this, id](Wire<v1::OpenSessionRequest>::Item item) { OnArrival(id, std::move(item)); },
      [this, id, at_worker = std::move(at_worker)](Wire<v1::OpenSessionResponse>::Item item) {
        at_worker(std::move(item));
        if (const auto it = streams_.find(id); it != streams_.end()) Retire(it->second);
      });
  streams_[id] = stream;
  return stream;
}

void CoordinatorProcess::Retire(const std::shared_ptr<Stream>& stream) {
  if (!stream->up.done() || !stream->down.done()) return;
  // Not from within its own delivery.
  timeline_.After(nanoseconds(0), [this, stream] { streams_.erase(stream->id); });
}

void CoordinatorProcess::Replan() {
  for (const auto& [id, stream] : streams_) {
    stream->up.Plan();
    stream->down.Plan();
  }
}

void CoordinatorProcess::OnArrival(uint64_t session_id, Wire<v1::OpenSessionRequest>::Item item) {
  const auto found = streams_.find(session_id);
  if (found == streams_.end()) return;
  const std::shared_ptr<Stream> stream = found->second;
  if (!up()) {
    stream->up.Cut();
    stream->down.Break(Gone());
    return;
  }
  v1::StateEvent event;
  if (auto* message = std::get_if<v1::OpenSessionRequest>(&item)) {
    // The coordinator has closed it, or it belongs to a process that is gone.
    if (stream->down.ended()) return;
    open_.insert(session_id);
    event.mutable_session_message()->set_session_id(session_id);
    *event.mutable_session_message()->mutable_message() = std::move(*message);
  } else {
    event.mutable_session_closed()->set_session_id(session_id);
    stream->down.Cut();
    Retire(stream);
  }
  Post(std::move(event));
}

uint64_t CoordinatorProcess::Call(v1::StateEvent event, const Link* link, Answer answer,
                                  Answer item) {
  const uint64_t id = next_id_++;
  event.set_call_id(id);
  timeline_.After(Latency(link), [this, id, link, event = std::move(event),
                                  answer = std::move(answer), item = std::move(item)]() mutable {
    if (!up() || (link != nullptr && link->up_blocked)) {
      timeline_.After(Latency(link), [answer = std::move(answer)] { answer(Gone(), nullptr); });
      return;
    }
    calls_[id] = {link, std::move(answer), std::move(item)};
    Post(std::move(event));
  });
  return id;
}

void CoordinatorProcess::CancelCall(uint64_t call_id) {
  if (!calls_.contains(call_id)) return;
  v1::StateEvent event;
  event.mutable_call_cancelled()->set_call_id(call_id);
  Post(std::move(event));
}

void CoordinatorProcess::Post(v1::StateEvent event) {
  if (timeline_.now() >= stalled_until_) {
    event.set_now_nanos(clock.Steady(timeline_.now()).count());
  }
  inbox_.push_back(std::move(event));
  PlanTurn();
}

void CoordinatorProcess::PlanTurn() {
  if (turn_planned_ || committing_ || !up() || timeline_.now() < stalled_until_) return;
  turn_planned_ = true;
  timeline_.After(random_.Between(nanoseconds(0), turn), [this, life = life_] {
    if (life == life_) Turn();
  });
}

void CoordinatorProcess::PlanTick() {
  const SteadyNanos now = clock.Steady(timeline_.now());
  nanoseconds wait = kLongestWait;
  if (const auto due = machine_->NextDeadline(); due.has_value()) {
    wait = std::clamp<nanoseconds>(*due - now, nanoseconds(0), wait);
  }
  timeline_.After(clock.TrueSpan(wait), [this, life = life_, tick = ++tick_] {
    if (life != life_ || tick != tick_ || turn_planned_) return;
    PlanTurn();
  });
}

void CoordinatorProcess::Turn() {
  turn_planned_ = false;
  if (timeline_.now() < stalled_until_) return;
  if (inbox_.empty()) inbox_.emplace_back().mutable_tick();
  std::vector<v1::StateEvent> batch = std::exchange(inbox_, {});
  batch.back().set_end_of_batch(true);
  Actions all;
  const int64_t now = clock.Steady(timeline_.now()).count();
  const auto wall = ToProtoTimestamp(clock.Wall(timeline_.now()));
  for (v1::StateEvent& event : batch) {
    // What arrived during a stall is stamped when the process runs again.
    if (event.now_nanos() == 0) event.set_now_nanos(now);
    *event.mutable_wall() = wall;
    event.set_random(random_.Next());
    if (event.has_enter_barrier()) open_barriers_[event.call_id()] = event.enter_barrier();
    Actions actions = machine_->Step(event);
    ++steps_;
    all.list.insert(all.list.end(), std::make_move_iterator(actions.list.begin()),
                    std::make_move_iterator(actions.list.end()));
    all.rows = std::move(actions.rows);
  }
  observer_.OnStepped(*machine_, batch, all.list);
  for (const Action& action : all.list) {
    if (const auto* reply = std::get_if<ReplyToCall>(&action)) {
      open_barriers_.erase(reply->call_id);
    }
  }
  for (const v1::StateEvent& event : batch) {
    if (event.has_session_closed()) open_.erase(event.session_closed().session_id());
  }
  const nanoseconds hang = std::exchange(disk_hangs_, nanoseconds(0));
  if (hang.count() == 0) {
    Finish(std::move(all));
    return;
  }
  committing_ = true;
  timeline_.After(hang, [this, life = life_, all = std::make_shared<Actions>(std::move(all))] {
    if (life != life_) return;
    committing_ = false;
    Finish(std::move(*all));
  });
}

CoordinatorProcess::CrashPoint CoordinatorProcess::DrawCrash() {
  if (++writes_ == crash_at_write) {
    return crash_after_commit ? CrashPoint::kAfter : CrashPoint::kBefore;
  }
  if (crash_chance == 0 || random_.Below(1000) >= crash_chance) return CrashPoint::kNone;
  return random_.OneIn(2) ? CrashPoint::kAfter : CrashPoint::kBefore;
}

bool CoordinatorProcess::Commit(const std::vector<v1::StateRow>& rows) {
  const CrashPoint crash = rows.empty() ? CrashPoint::kNone : DrawCrash();
  if (crash != CrashPoint::kBefore) {
    const absl::Status status = Write(rows);
    if (!status.ok()) {
      OnCommitFailed(status, rows);
      return false;
    }
    observer_.OnCommitted(*machine_, rows);
  }
  if (crash == CrashPoint::kNone) return true;
  if (timeline_.notes_wanted()) {
    timeline_.Note(fmt::format("coordinator crashes {} write {}",
                               crash == CrashPoint::kAfter ? "after" : "before", writes_));
  }
  Crash(random_.Between(milliseconds(50), seconds(4)));
  return false;
}

void CoordinatorProcess::Finish(Actions actions) {
  if (!Commit(actions.rows)) return;
  Release(std::move(actions.list));
  if (!inbox_.empty()) PlanTurn();
  PlanTick();
}

void CoordinatorProcess::Release(std::vector<Action> actions) {
  for (Action& action : actions) {
    if (timeline_.notes_wanted() && IsNoted(action)) {
      timeline_.Note("coordinator: " + DebugText(action).substr(0, kLongestNote));
    }
    if (auto* send = std::get_if<SendToSession>(&action)) {
      const auto stream = streams_.find(send->session_id);
      if (stream == streams_.end() || !open_.contains(send->session_id)) continue;
      stream->second->down.Put(std::move(send->message));
    } else if (auto* close = std::get_if<CloseSession>(&action)) {
      if (open_.erase(close->session_id) == 0) continue;
      const auto stream = streams_.find(close->session_id);
      if (stream == streams_.end()) continue;
      stream->second->down.Put(close->status);
      Retire(stream->second);
    } else if (auto* reply = std::get_if<ReplyToCall>(&action)) {
      Reply(reply->call_id, reply->status, std::move(reply->response));
    } else if (auto* item = std::get_if<StreamItem>(&action)) {
      const auto call = calls_.find(item->call_id);
      if (call != calls_.end() && call->second.item) {
        call->second.item(absl::OkStatus(), item->item);
      }
    }
  }
}

void CoordinatorProcess::Reply(uint64_t call_id, const absl::Status& status, MessagePtr response) {
  const auto it = calls_.find(call_id);
  if (it == calls_.end()) return;
  PendingCall call = std::move(it->second);
  calls_.erase(it);
  timeline_.After(Latency(call.link), [link = call.link, answer = std::move(call.answer), status,
                                       response = std::move(response)] {
    // The answer is lost, and the connection with it.
    const bool lost = link != nullptr && link->down_blocked;
    answer(lost ? Gone() : status, lost ? nullptr : response);
  });
}

}  // namespace meshrun::coordinator::simulation
