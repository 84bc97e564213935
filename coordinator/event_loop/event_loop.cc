#include "coordinator/event_loop/event_loop.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

#include "coordinator/state_store/state_copy.h"
#include "core/error_detail.h"
#include "core/ids.h"
#include "core/log.h"
#include "core/os/fd.h"
#include "core/proto_time.h"
#include "core/status.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

// During a commit that takes longer heartbeats are answered: most commits are over before.
constexpr std::chrono::milliseconds kSlowCommit(200);
// A commit that takes longer stops the state machine's clock.
constexpr std::chrono::seconds kStandStill(1);
constexpr std::chrono::seconds kForgetSenders(10);
constexpr std::chrono::milliseconds kFullQueueWait(100);

// What is recorded: without the values of environments, which are the ranks' alone.
v1::StateEvent WithoutValues(v1::StateEvent event) {
  if (event.has_submit_job()) {
    for (v1::EnvEntry& entry : *event.mutable_submit_job()->mutable_spec()->mutable_env()) {
      entry.clear_value();
    }
  }
  if (!event.has_restore()) return event;
  for (v1::StateRow& row : *event.mutable_restore()->mutable_rows()) {
    v1::JobRecord record;
    if (row.table() != v1::STATE_TABLE_JOBS || !record.ParseFromString(row.value())) continue;
    for (v1::EnvEntry& entry : *record.mutable_env()) entry.clear_value();
    row.set_value(record.SerializeAsString());
  }
  return event;
}

// For a call that was stepped, and perhaps committed: it may not be made again as if nothing had
// been done.
absl::Status InDoubt(const absl::Status& why) {
  v1::ErrorDetail detail = DetailOf(why);
  if (!detail.standby()) return why;
  detail.clear_standby();
  absl::Status status = absl::UnavailableError(
      fmt::format("{}; whether the call was carried out is not known", std::string(why.message())));
  SetDetail(&status, detail);
  return status;
}

void WarnOfSlowStep(const v1::StateEvent& event, SteadyNanos took) {
  const auto* const kind = event.GetReflection()->GetOneofFieldDescriptor(
      event, v1::StateEvent::descriptor()->FindOneofByName("event"));
  log::Warning("an event took long: everybody waited for it",
               {{"event", kind == nullptr ? "none" : kind->name()},
                {"ms", std::chrono::duration_cast<std::chrono::milliseconds>(took).count()},
                {"bytes", event.ByteSizeLong()},
                {"user", event.caller().user()}});
}

}  // namespace

absl::Status EventLoop::Start() {
  MESHRUN_ASSIGN_OR_RETURN(const uint64_t term, options_.store.BeginTerm());
  term_ = term;
  MESHRUN_ASSIGN_OR_RETURN(restored_, IsCopy(options_.store));
  if (options_.has_cluster_id) MESHRUN_RETURN_IF_ERROR(FindClusterId());
  if (!options_.record_path.empty()) {
    // Events hold what users submit: nobody else's business.
    const os::UniqueFd own(
        ::open(options_.record_path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    // Also where the file was there before.
    if (own) ::fchmod(own.get(), 0600);
    record_.open(options_.record_path, std::ios::binary | std::ios::trunc);
    if (!record_) {
      return absl::InvalidArgumentError(
          fmt::format("--record-events: cannot write {}", options_.record_path));
    }
  }
  MESHRUN_RETURN_IF_ERROR(Restore());
  commits_.Start();
  loads_.Start();
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void EventLoop::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    arrived_.NotifyAll();
    measured_now_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  {
    MutexLock lock(mu_);
    paused_.clear();
  }
  commits_.Stop();
  loads_.Stop();
}

void EventLoop::Poke() {
  MutexLock lock(mu_);
  poked_ = true;
  arrived_.NotifyAll();
}

v1::StateEvent EventLoop::Stamped(v1::StateEvent event) const {
  event.set_now_nanos(Now().count());
  *event.mutable_wall() = ToProtoTimestamp(options_.clock.WallNow());
  return event;
}

absl::Status EventLoop::Post(v1::StateEvent event) {
  if (event.event_case() == v1::StateEvent::kSubmitJob) {
    event.set_random(RandomIdSource().Next());
  }
  Senders::Event sent = Senders::EventOf(event, event.ByteSizeLong());
  MutexLock lock(mu_);
  if (stopping_ || lost_) return WhyEnded();
  MESHRUN_RETURN_IF_ERROR(CheckRoom(sent.bytes));
  if (senders_) MESHRUN_RETURN_IF_ERROR(senders_->Admit(sent));
  Enqueue(std::move(event), std::move(sent));
  return absl::OkStatus();
}

absl::StatusOr<bool> EventLoop::PostMessage(v1::StateEvent event, std::function<void()> resume) {
  Senders::Event sent = Senders::EventOf(event, event.ByteSizeLong());
  MutexLock lock(mu_);
  if (stopping_ || lost_) return WhyEnded();
  std::string sender = sent.sender;
  const bool room_in_all = CheckRoom(sent.bytes).ok();
  Enqueue(std::move(event), std::move(sent));
  const bool has_room = room_in_all && !(senders_ && senders_->IsFull(sender));
  if (!has_room) paused_.push_back({std::move(sender), std::move(resume)});
  return has_room;
}

absl::Status EventLoop::CheckRoom(size_t bytes) const {
  if (queue_.size() >= options_.queue_limit) {
    return TryAgainLater(
        fmt::format("the coordinator has {} events waiting, and takes no more", queue_.size()),
        kFullQueueWait);
  }
  if (queue_bytes_ + bytes > options_.queue_bytes_limit) {
    return TryAgainLater(
        fmt::format("the coordinator has events of {} waiting, and takes no more than {}",
                    FormatBytes(queue_bytes_), FormatBytes(options_.queue_bytes_limit)),
        kFullQueueWait);
  }
  return absl::OkStatus();
}

void EventLoop::Enqueue(v1::StateEvent event, Senders::Event sent) {
  if (senders_) senders_->OnQueued(sent, options_.clock.SteadyNow());
  queue_bytes_ += sent.bytes;
  // Stamped under the lock: the order of the queue is the order of time.
  queue_.push_back({Stamped(std::move(event)), std::move(sent)});
  if (queue_.size() == seen_ + 1) arrived_.NotifyAll();
}

void EventLoop::PostEnd(v1::StateEvent event) {
  MutexLock lock(mu_);
  if (stopping_ || lost_) return;
  Enqueue(std::move(event), {});
}

std::string EventLoop::read_only_reason() const {
  MutexLock lock(mu_);
  return read_only_reason_;
}

void EventLoop::Run() {
  while (true) {
    AwaitSomething();
    {
      MutexLock lock(mu_);
      // Whoever stops a loop that leads no more may have come first.
      lost_ = !MayAct();
      if (stopping_ || lost_) break;
    }
    Turn();
  }
  absl::Status why;
  std::set<uint64_t> waiting;
  {
    MutexLock lock(mu_);
    why = WhyEnded();
    for (const Queued& queued : queue_) {
      if (!queued.event.has_call_cancelled()) waiting.insert(queued.event.call_id());
    }
  }
  options_.recipients.EndCalls(why, waiting);
  options_.recipients.EndCalls(InDoubt(why));
  options_.recipients.EndSessions(why);
}

absl::Status EventLoop::WhyEnded() const {
  return lost_ ? options_.not_leading() : absl::UnavailableError("the coordinator is stopping");
}

SteadyNanos EventLoop::WakeAt() const {
  // Every wait has an end, whatever the clock does.
  const SteadyNanos now = options_.clock.SteadyNow();
  SteadyNanos wake = now + std::chrono::seconds(1);
  if (mode_ == Mode::kFailed && work_ == Work::kNone) wake = std::min(wake, next_attempt_);
  if (mode_ != Mode::kWriting) return wake;
  if (work_ == Work::kCommit) {
    const SteadyNanos slow_from = work_began_ + kSlowCommit;
    return std::min(wake, now < slow_from ? slow_from : work_began_ + options_.read_only_after);
  }
  const auto deadline = machine_->NextDeadline();
  return deadline ? std::min(wake, *deadline + SteadyNanos(stood_still_.load())) : wake;
}

void EventLoop::AwaitSomething() {
  const SteadyNanos wait = WakeAt() - options_.clock.SteadyNow();
  const auto until = std::chrono::steady_clock::now() +
                     std::chrono::duration_cast<std::chrono::steady_clock::duration>(wait);
  const bool committing = mode_ == Mode::kWriting && work_ == Work::kCommit;
  const bool slow = committing && options_.clock.SteadyNow() - work_began_ >= kSlowCommit;
  MutexLock lock(mu_);
  while (!stopping_ && !std::exchange(poked_, false)) {
    if (slow ? queue_.size() > seen_ : !committing && !queue_.empty()) return;
    if (!arrived_.WaitUntil(mu_, until)) return;
  }
}

void EventLoop::Turn() {
  if (options_.on_turn) options_.on_turn();
  TellMeasures();
  if (loads_.TakeDone()) OnViewLoaded();
  if (commits_.TakeDone()) OnStoreDone();
  if (mode_ == Mode::kWriting && work_ == Work::kCommit) {
    const SteadyNanos took = options_.clock.SteadyNow() - work_began_;
    if (took >= kSlowCommit) AnswerDuringCommit();
    if (took >= options_.read_only_after) {
      EnterReadOnly(Mode::kHung,
                    fmt::format("its disk has not answered for {}", FormatDuration(took)));
    }
    return;
  }
  if (mode_ == Mode::kFailed && work_ == Work::kNone &&
      options_.clock.SteadyNow() >= next_attempt_) {
    BeginProbe();
  }
  Batch batch = TakeBatch();
  if (mode_ == Mode::kWriting) {
    Process(std::move(batch));
  } else {
    ProcessReadOnly(std::move(batch));
  }
}

EventLoop::Batch EventLoop::TakeBatch() {
  Batch batch;
  std::vector<Paused> resumed;
  {
    MutexLock lock(mu_);
    while (!queue_.empty() && batch.size() < options_.batch_limit) {
      batch.push_back(std::move(queue_.front().event));
      queue_bytes_ -= queue_.front().sent.bytes;
      if (senders_) senders_->OnTaken(queue_.front().sent);
      queue_.pop_front();
    }
    seen_ -= std::min(seen_, batch.size());
    const bool has_room =
        queue_.size() <= options_.queue_limit / 2 && queue_bytes_ <= options_.queue_bytes_limit / 2;
    if (has_room) {
      const auto first = std::stable_partition(
          paused_.begin(), paused_.end(),
          [&](const Paused& paused) { return senders_ && !senders_->HasRoom(paused.sender); });
      resumed.assign(std::make_move_iterator(first), std::make_move_iterator(paused_.end()));
      paused_.erase(first, paused_.end());
    }
  }
  for (const Paused& paused : resumed) paused.resume();
  return batch;
}

void EventLoop::AddTo(std::string* record, const v1::StateEvent& event) const {
  if (options_.record_path.empty()) return;
  std::ostringstream bytes;
  google::protobuf::util::SerializeDelimitedToOstream(WithoutValues(event), &bytes);
  *record += bytes.str();
}

Actions EventLoop::StepBatch(Batch& batch) {
  batch.back().set_end_of_batch(true);
  Actions all;
  Costs costs;
  for (const v1::StateEvent& event : batch) {
    AddTo(&unrecorded_, event);
    const auto began = std::chrono::steady_clock::now();
    Actions actions = machine_->Step(event);
    const SteadyNanos took = std::chrono::steady_clock::now() - began;
    if (took >= options_.slow_step) WarnOfSlowStep(event, took);
    if (options_.sender_limits) costs.emplace_back(Senders::EventOf(event, 0), took);
    all.list.insert(all.list.end(), std::make_move_iterator(actions.list.begin()),
                    std::make_move_iterator(actions.list.end()));
    all.rows = std::move(actions.rows);
    all.damage.Update(actions.damage);
  }
  Charge(costs);
  return all;
}

void EventLoop::Charge(const Costs& costs) {
  if (costs.empty()) return;
  const SteadyNanos now = options_.clock.SteadyNow();
  MutexLock lock(mu_);
  for (const auto& [sent, took] : costs) senders_->OnStepped(sent, took);
  if (now - senders_forgotten_at_ < kForgetSenders) return;
  senders_forgotten_at_ = now;
  senders_->Forget(now);
}

void EventLoop::Process(Batch batch) {
  if (batch.empty()) {
    v1::StateEvent tick;
    tick.mutable_tick();
    batch.push_back(Stamped(std::move(tick)));
  }
  const uint64_t generations = machine_->committed_generations();
  Actions actions = StepBatch(batch);
  committed_ = {.events = batch.size(),
                .rows = actions.rows.size(),
                .generations = machine_->committed_generations() - generations};
  // Answers to heartbeats show nothing of the state.
  const auto first_answer =
      std::stable_partition(actions.list.begin(), actions.list.end(), [](const Action& action) {
        const auto* const send = std::get_if<SendToSession>(&action);
        return send == nullptr || !send->message.has_heartbeat_reply();
      });
  options_.recipients.Deliver(
      {std::make_move_iterator(first_answer), std::make_move_iterator(actions.list.end())});
  actions.list.erase(first_answer, actions.list.end());
  for (const Action& action : actions.list) {
    if (const auto* const begin = std::get_if<BeginAnew>(&action)) ending_ = *begin;
  }
  unreleased_ = std::move(actions.list);
  uncommitted_ = std::move(batch);
  if (actions.rows.empty() && unrecorded_.empty()) {
    Release();
  } else {
    BeginCommit(Work::kCommit, std::move(actions.rows));
  }
}

void EventLoop::BeginCommit(Work work, std::vector<v1::StateRow> rows) {
  work_ = work;
  work_began_ = options_.clock.SteadyNow();
  outcome_ = std::make_shared<Outcome>();
  commits_.Begin([this, rows = std::move(rows), record = std::exchange(unrecorded_, {}),
                  outcome = outcome_.get()] {
    outcome->status = options_.store.Commit(term_, rows);
    if (outcome->status.ok() && options_.audit_file != nullptr) options_.audit_file->Write(rows);
    if (outcome->status.ok() && !record.empty())
      record_.write(record.data(), record.size()).flush();
  });
}

void EventLoop::OnStoreDone() {
  const Work done = std::exchange(work_, Work::kNone);
  const SteadyNanos took = options_.clock.SteadyNow() - work_began_;
  const std::shared_ptr<Outcome> outcome = std::move(outcome_);
  if (done == Work::kProbe) {
    OnProbed(*outcome);
  } else if (done == Work::kCommit) {
    OnCommitted(outcome->status, took);
  } else if (outcome->status.ok()) {
    Release();
    LeaveReadOnly();
  }
}

void EventLoop::OnCommitted(const absl::Status& status, SteadyNanos took) {
  if (took >= kStandStill) StandStill(took);
  if (status.ok()) {
    committed_.took = took;
    if (options_.on_commit) options_.on_commit(committed_);
    Release();
    if (mode_ == Mode::kHung) LeaveReadOnly();
    return;
  }
  superseded_ = absl::IsFailedPrecondition(status);
  // Events that were stepped but not written never happened.
  unreleased_.clear();
  EnterReadOnly(Mode::kFailed, std::string(status.message()));
  // Their calls have their answer; their sessions go on.
  ProcessReadOnly(std::exchange(uncommitted_, {}));
  ProcessReadOnly(std::exchange(held_, {}));
}

void EventLoop::StandStill(SteadyNanos took) {
  MutexLock lock(mu_);
  const int64_t frozen = (work_began_ - SteadyNanos(stood_still_.load())).count();
  stood_still_ += took.count();
  for (Queued& queued : queue_) queued.event.set_now_nanos(frozen);
  for (v1::StateEvent& event : held_) event.set_now_nanos(frozen);
  for (v1::StateEvent& event : waiting_reads_) event.set_now_nanos(frozen);
}

void EventLoop::Release() {
  const std::optional<BeginAnew> anew = ending_;
  options_.recipients.Deliver(std::exchange(unreleased_, {}));
  for (const v1::StateEvent& event : uncommitted_) {
    if (event.has_session_closed()) {
      options_.recipients.Close(event.session_closed().session_id(), absl::OkStatus());
    }
  }
  uncommitted_.clear();
  if (anew.has_value()) Begin(*anew);
}

void EventLoop::SetPolicy(v1::Policy policy, v1::Caller by) {
  v1::StateEvent event;
  *event.mutable_caller() = std::move(by);
  *event.mutable_set_policy() = policy;
  {
    // Where the coordinator is read-only, the state that is restored after it has this one.
    MutexLock lock(policy_mu_);
    policy_ = std::move(policy);
  }
  PostEnd(std::move(event));
}

}  // namespace meshrun::coordinator
