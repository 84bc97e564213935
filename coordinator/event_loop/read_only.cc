// The event loop while the state cannot be written.
#include <fmt/format.h>

#include <set>
#include <utility>

#include "coordinator/event_loop/event_loop.h"
#include "coordinator/state_store/state_copy.h"
#include "core/log.h"
#include "core/proto_time.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

constexpr std::chrono::seconds kAttemptInterval(1);
// Reads wait so long for what is on disk; a disk that hangs may not be read either.
constexpr std::chrono::seconds kLoadTime(2);

// Without a default: the compiler names an event that is not here.
bool IsRead(const v1::StateEvent& event) {
  switch (event.event_case()) {
    case v1::StateEvent::kGetJob:
    case v1::StateEvent::kListJobs:
    case v1::StateEvent::kWatchJob:
    case v1::StateEvent::kListNodes:
    case v1::StateEvent::kDescribeCluster:
    case v1::StateEvent::kListEvents:
    case v1::StateEvent::kDescribeLimits:
    case v1::StateEvent::kListUsage:
    case v1::StateEvent::kListAudit:
    case v1::StateEvent::kReadLogs:
    case v1::StateEvent::kReadPictures:
      return true;
    case v1::StateEvent::kTick:
    case v1::StateEvent::kSessionMessage:
    case v1::StateEvent::kSessionClosed:
    case v1::StateEvent::kCallCancelled:
    case v1::StateEvent::kSubmitJob:
    case v1::StateEvent::kCancelJob:
    case v1::StateEvent::kGetFlightRecords:
    case v1::StateEvent::kGetStacks:
    case v1::StateEvent::kRestore:
    case v1::StateEvent::kSetValues:
    case v1::StateEvent::kGetValues:
    case v1::StateEvent::kWaitKeys:
    case v1::StateEvent::kAddValue:
    case v1::StateEvent::kCompareSetValue:
    case v1::StateEvent::kAppendValue:
    case v1::StateEvent::kDeleteKey:
    case v1::StateEvent::kCountKeys:
    case v1::StateEvent::kEnterBarrier:
    case v1::StateEvent::kPublishUniqueId:
    case v1::StateEvent::kAwaitUniqueId:
    case v1::StateEvent::kRegisterGroup:
    case v1::StateEvent::kGetWorld:
    case v1::StateEvent::kUploadFlightRecord:
    case v1::StateEvent::kUploadStack:
    case v1::StateEvent::kNotice:
    case v1::StateEvent::kOutsideCall:
    case v1::StateEvent::kSetPolicy:
    case v1::StateEvent::kCommitCheckpoint:
    case v1::StateEvent::kGetCheckpoint:
    case v1::StateEvent::kReportFinished:
    case v1::StateEvent::kGetFinished:
    case v1::StateEvent::kUpdateJob:
    case v1::StateEvent::kDrainNode:
    case v1::StateEvent::kUndrainNode:
    case v1::StateEvent::kRemoveNode:
    case v1::StateEvent::kSignalJob:
    case v1::StateEvent::EVENT_NOT_SET:
      return false;
  }
  return false;
}

}  // namespace

absl::Status EventLoop::Refusal() const {
  return absl::UnavailableError("the coordinator is read-only: " + read_only_reason());
}

void EventLoop::EnterReadOnly(Mode mode, const std::string& reason) {
  log::Error("read-only from now on", {{"why", reason}});
  {
    MutexLock lock(mu_);
    read_only_reason_ = "the state cannot be written: " + reason;
  }
  mode_ = mode;
  if (mode == Mode::kFailed) {
    // What it believes was not written.
    machine_ = std::make_unique<StateMachine>();
    options_.recipients.EndCalls(Refusal());
    waiting_reads_.clear();
    next_attempt_ = options_.clock.SteadyNow() + kAttemptInterval;
  }
  if (superseded_) options_.recipients.EndSessions(Refusal());
  frozen_now_nanos_ = Now().count();
  read_only_began_ = options_.clock.SteadyNow();
  if (!loads_.busy()) LoadView();
  if (mode == Mode::kHung) AnswerUncommittedReads();
}

void EventLoop::AnswerUncommittedReads() {
  std::set<uint64_t> calls;
  for (const v1::StateEvent& event : uncommitted_) {
    // Streams wait: part of their answer may have been given.
    if (!IsRead(event) || event.has_watch_job() || event.has_read_logs() ||
        event.has_read_pictures()) {
      continue;
    }
    calls.insert(event.call_id());
    AnswerRead(event);
  }
  std::erase_if(unreleased_, [&calls](const Action& action) {
    const auto* const reply = std::get_if<ReplyToCall>(&action);
    return reply != nullptr && calls.contains(reply->call_id);
  });
}

void EventLoop::LoadView() {
  view_.reset();
  load_began_ = options_.clock.SteadyNow();
  view_outcome_ = std::make_shared<Outcome>();
  loads_.Begin([this, loaded = view_outcome_.get()] {
    auto state = ReadState(/*is_copy=*/false, nullptr);
    loaded->status = state.status();
    if (state.ok()) loaded->state = *std::move(state);
  });
}

void EventLoop::OnViewLoaded() {
  const std::shared_ptr<Outcome> loaded = std::move(view_outcome_);
  if (mode_ == Mode::kWriting) return;
  if (load_began_ < read_only_began_) {
    // Left from the last time.
    LoadView();
    return;
  }
  if (loaded->status.ok()) {
    // Its rows stay unwritten.
    view_ = std::move(loaded->state.machine);
    frozen_now_nanos_ = loaded->state.now_nanos;
  }
  if (view_ == nullptr) RefuseWaitingReads();
  for (v1::StateEvent& event : std::exchange(waiting_reads_, {})) AnswerRead(std::move(event));
}

void EventLoop::RefuseWaitingReads() {
  for (const v1::StateEvent& event : std::exchange(waiting_reads_, {})) {
    options_.recipients.Reply(event.call_id(), Refusal(), nullptr);
  }
}

void EventLoop::BeginProbe() {
  next_attempt_ = options_.clock.SteadyNow() + kAttemptInterval;
  work_ = Work::kProbe;
  work_began_ = options_.clock.SteadyNow();
  outcome_ = std::make_shared<Outcome>();
  const uint64_t ending = ending_.has_value() ? ending_->term : 0;
  commits_.Begin([this, is_copy = restored_, ending, outcome = outcome_.get()] {
    outcome->status = options_.store.Commit(term_, {TermRow(term_)});
    if (ending != 0 && absl::IsFailedPrecondition(outcome->status)) {
      // The commit that ended the roll call changed the term, and its answer was lost. Nobody else
      // can have done so: OnProbed is called only where we lead still.
      const auto is_over = IsRollCallOver(options_.store, ending);
      outcome->roll_call_is_over = is_over.ok() && *is_over;
    }
    if (!outcome->status.ok()) return;
    auto state = ReadState(
        is_copy, [this, outcome](const v1::StateEvent& part) { AddTo(&outcome->record, part); });
    if (state.ok()) {
      outcome->state = *std::move(state);
    } else {
      log::Error("still read-only", {{"why", state.status()}});
      outcome->status = state.status();
    }
  });
}

void EventLoop::OnProbed(Outcome& outcome) {
  if (outcome.roll_call_is_over && ending_.has_value()) {
    if (Begin(BeginAnew(*ending_))) LeaveReadOnly();
    return;
  }
  if (!outcome.status.ok()) return;
  ending_.reset();
  machine_ = std::move(outcome.state.machine);
  unrecorded_ = std::move(outcome.record);
  unreleased_ = std::move(outcome.state.actions.list);
  BeginCommit(Work::kRestore, std::move(outcome.state.actions.rows));
}

void EventLoop::LeaveReadOnly() {
  log::Info("the state can be written again");
  const bool failed = std::exchange(mode_, Mode::kWriting) == Mode::kFailed;
  {
    // First: whoever is told to say Hello again finds it gone.
    MutexLock lock(mu_);
    read_only_reason_.clear();
  }
  if (failed || std::exchange(dropped_messages_, false)) {
    options_.recipients.EndSessions(absl::UnavailableError(
        "the coordinator was read-only and has not kept what was said meanwhile: say Hello again"));
  }
  view_.reset();
  superseded_ = false;
  Batch batch = std::exchange(held_, {});
  for (v1::StateEvent& event : std::exchange(waiting_reads_, {})) {
    batch.push_back(std::move(event));
  }
  if (failed) {
    // The state is younger than they are.
    for (v1::StateEvent& event : batch) event.set_now_nanos(Now().count());
  }
  if (!batch.empty()) Process(std::move(batch));
}

void EventLoop::AnswerDuringCommit() {
  std::vector<v1::SessionMessage> heartbeats;
  {
    MutexLock lock(mu_);
    for (; seen_ < queue_.size(); ++seen_) {
      const v1::StateEvent& event = queue_[seen_].event;
      if (event.session_message().message().has_heartbeat()) {
        heartbeats.push_back(event.session_message());
      }
    }
  }
  for (const v1::SessionMessage& heartbeat : heartbeats) AnswerWorker(heartbeat);
}

void EventLoop::AnswerWorker(const v1::SessionMessage& event) {
  const v1::OpenSessionRequest& message = event.message();
  v1::OpenSessionResponse reply;
  // Workers hear nobody of a lower term than they know, and a copy's may be lower until the roll
  // call is over.
  const uint64_t known = restored_ ? message.fence().term() : 0;
  reply.mutable_fence()->set_term(std::max(term_.load(), known));
  reply.mutable_fence()->set_incarnation(message.fence().incarnation());
  if (message.has_hello()) {
    reply.mutable_welcome()->set_roll_call(restored_);
    *reply.mutable_welcome()->mutable_lease() = ToProtoDuration(options_.lease);
    *reply.mutable_welcome()->mutable_heartbeat_interval() = ToProtoDuration(options_.heartbeat);
    reply.mutable_welcome()->set_cluster_id(cluster_id_);
  } else if (message.has_heartbeat()) {
    reply.mutable_heartbeat_reply()->set_sequence(message.heartbeat().sequence());
  } else {
    return;
  }
  options_.recipients.Send(event.session_id(), std::move(reply));
}

void EventLoop::AnswerRead(v1::StateEvent event) {
  if (view_ != nullptr) {
    // No lease ends while nobody may renew it.
    event.set_now_nanos(frozen_now_nanos_);
    options_.recipients.Deliver(view_->Step(event).list);
    // Nothing changes from here on, so a watch has shown all; no call outlives this view.
    if (event.has_watch_job()) options_.recipients.Reply(event.call_id(), Refusal(), nullptr);
  } else if (loads_.busy() && options_.clock.SteadyNow() - load_began_ < kLoadTime) {
    waiting_reads_.push_back(std::move(event));
  } else {
    options_.recipients.Reply(event.call_id(), Refusal(), nullptr);
  }
}

void EventLoop::ProcessReadOnly(Batch batch) {
  if (options_.clock.SteadyNow() - load_began_ >= kLoadTime) RefuseWaitingReads();
  const bool hung = mode_ == Mode::kHung;
  for (v1::StateEvent& event : batch) {
    if (event.has_session_message()) {
      const v1::SessionMessage& said = event.session_message();
      if (superseded_) {
        options_.recipients.Close(said.session_id(), Refusal());
        continue;
      }
      AnswerWorker(said);
      if (!hung || said.message().has_heartbeat() || said.message().has_progress_report()) continue;
      if (held_.size() < options_.queue_limit) {
        held_.push_back(std::move(event));
      } else {
        dropped_messages_ = true;
      }
    } else if (event.has_session_closed()) {
      options_.recipients.Close(event.session_closed().session_id(), absl::OkStatus());
      if (hung) held_.push_back(std::move(event));
    } else if (event.has_set_policy()) {
      // The state that is restored may have been read with the one before.
      held_.push_back(std::move(event));
    } else if (event.has_notice()) {
      // People should know it, and nobody says it again.
      if (held_.size() < options_.queue_limit) held_.push_back(std::move(event));
    } else if (event.has_call_cancelled()) {
      if (hung) held_.push_back(std::move(event));
    } else if (IsRead(event)) {
      AnswerRead(std::move(event));
    } else if (event.call_id() != 0) {
      options_.recipients.Reply(event.call_id(), Refusal(), nullptr);
    }
  }
}

}  // namespace meshrun::coordinator
