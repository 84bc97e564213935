#include "coordinator/event_loop/event_loop.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <sys/stat.h>

#include <charconv>
#include <utility>

#include "core/ids.h"
#include "core/log.h"
#include "core/os/fd.h"
#include "core/proto_time.h"
#include "core/status.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

constexpr std::chrono::seconds kAttemptInterval(1);

bool IsRead(const v1::StateEvent& event) {
  switch (event.event_case()) {
    case v1::StateEvent::kGetJob:
    case v1::StateEvent::kListJobs:
    case v1::StateEvent::kWatchJob:
    case v1::StateEvent::kListNodes:
    case v1::StateEvent::kDescribeCluster:
    case v1::StateEvent::kReadLogs:
    case v1::StateEvent::kCallCancelled:
      return true;
    default:
      return false;
  }
}

v1::StateRow MetaRow(std::string key, std::string value) {
  v1::StateRow row;
  row.set_table(v1::STATE_TABLE_META);
  row.set_key(std::move(key));
  row.set_value(std::move(value));
  return row;
}

// What is recorded: without the values of environments, which are the ranks' alone.
v1::StateEvent WithoutValues(v1::StateEvent event) {
  if (event.has_submit_job()) {
    for (auto& [name, value] : *event.mutable_submit_job()->mutable_spec()->mutable_env()) {
      value.clear();
    }
  }
  if (!event.has_restore()) return event;
  for (v1::StateRow& row : *event.mutable_restore()->mutable_rows()) {
    v1::JobRecord record;
    if (row.table() != v1::STATE_TABLE_JOBS || !record.ParseFromString(row.value())) continue;
    for (auto& [name, value] : *record.mutable_env()) value.clear();
    row.set_value(record.SerializeAsString());
  }
  return event;
}

}  // namespace

absl::Status EventLoop::Start() {
  MESHRUN_ASSIGN_OR_RETURN(const std::vector<v1::StateRow> rows, options_.store.Load());
  for (const v1::StateRow& row : rows) {
    if (row.table() != v1::STATE_TABLE_META || row.key() != "term") continue;
    const char* const end = row.value().data() + row.value().size();
    const auto [stop, error] = std::from_chars(row.value().data(), end, term_);
    if (error != std::errc{} || stop != end) {
      return absl::DataLossError(fmt::format(
          "the state is damaged: the term is '{}', which is not a number", row.value()));
    }
  }
  ++term_;
  MESHRUN_RETURN_IF_ERROR(options_.store.Commit({MetaRow("term", std::to_string(term_))}));
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
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void EventLoop::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    arrived_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

v1::StateEvent EventLoop::Stamped(v1::StateEvent event) const {
  event.set_now_nanos(options_.clock.SteadyNow().count());
  *event.mutable_wall() = ToProtoTimestamp(options_.clock.WallNow());
  return event;
}

absl::Status EventLoop::Post(v1::StateEvent event) {
  if (event.event_case() == v1::StateEvent::kSubmitJob) {
    event.set_random(RandomIdSource().Next());
  }
  const size_t bytes = event.ByteSizeLong();
  MutexLock lock(mu_);
  if (stopping_) return absl::UnavailableError("the coordinator is stopping");
  if (queue_.size() >= options_.queue_limit) {
    return absl::ResourceExhaustedError(
        fmt::format("the coordinator has {} events waiting, and takes no more", queue_.size()));
  }
  if (queue_bytes_ + bytes > options_.queue_bytes_limit) {
    return absl::ResourceExhaustedError(
        fmt::format("the coordinator has events of {} waiting, and takes no more than {}",
                    FormatBytes(queue_bytes_), FormatBytes(options_.queue_bytes_limit)));
  }
  Enqueue(std::move(event), bytes);
  return absl::OkStatus();
}

void EventLoop::Enqueue(v1::StateEvent event, size_t bytes) {
  // Stamped under the lock: the order of the queue is the order of time.
  queue_.push_back({Stamped(std::move(event)), bytes});
  queue_bytes_ += bytes;
  if (queue_.size() == 1) arrived_.NotifyOne();
}

void EventLoop::PostEnd(v1::StateEvent event) {
  MutexLock lock(mu_);
  if (stopping_) return;
  Enqueue(std::move(event), 0);
}

std::string EventLoop::read_only_reason() const {
  MutexLock lock(mu_);
  return read_only_reason_;
}

std::vector<v1::StateEvent> EventLoop::TakeBatch() {
  auto deadline = read_only_ ? std::optional<SteadyNanos>(next_attempt_) : machine_.NextDeadline();
  // Every wait has an end, whatever the clock does.
  const SteadyNanos now = options_.clock.SteadyNow();
  const SteadyNanos wake = std::min(deadline.value_or(now + std::chrono::seconds(1)),
                                    now + SteadyNanos(std::chrono::seconds(1)));
  const auto until = std::chrono::steady_clock::now() +
                     std::chrono::duration_cast<std::chrono::steady_clock::duration>(wake - now);
  std::vector<v1::StateEvent> batch;
  MutexLock lock(mu_);
  while (queue_.empty() && !stopping_) {
    if (!arrived_.WaitUntil(mu_, until)) break;
  }
  if (stopping_) return batch;
  while (!queue_.empty() && batch.size() < options_.batch_limit) {
    batch.push_back(std::move(queue_.front().event));
    queue_bytes_ -= queue_.front().bytes;
    queue_.pop_front();
  }
  if (batch.empty()) {
    v1::StateEvent tick;
    tick.mutable_tick();
    batch.push_back(Stamped(std::move(tick)));
  }
  return batch;
}

void EventLoop::Run() {
  while (true) {
    std::vector<v1::StateEvent> batch = TakeBatch();
    if (batch.empty()) break;
    if (read_only_ && options_.clock.SteadyNow() >= next_attempt_) TryToLeaveReadOnly();
    if (read_only_) {
      ProcessReadOnly(std::move(batch));
    } else {
      Process(std::move(batch));
    }
  }
  options_.recipients.EndCalls(absl::UnavailableError("the coordinator is stopping"));
  options_.recipients.EndSessions(absl::UnavailableError("the coordinator is stopping"));
}

Actions EventLoop::StepBatch(std::vector<v1::StateEvent>& batch) {
  batch.back().set_end_of_batch(true);
  Actions all;
  for (const v1::StateEvent& event : batch) {
    if (record_.is_open()) {
      google::protobuf::util::SerializeDelimitedToOstream(WithoutValues(event), &record_);
    }
    Actions actions = machine_.Step(event);
    all.list.insert(all.list.end(), std::make_move_iterator(actions.list.begin()),
                    std::make_move_iterator(actions.list.end()));
    all.rows = std::move(actions.rows);
    all.damage.Update(actions.damage);
  }
  if (record_.is_open()) record_.flush();
  return all;
}

void EventLoop::Process(std::vector<v1::StateEvent> batch) {
  Actions actions = StepBatch(batch);
  if (const absl::Status status = options_.store.Commit(actions.rows); !status.ok()) {
    EnterReadOnly(status);
    // Its calls have their answer; its sessions go on.
    ProcessReadOnly(std::move(batch));
    return;
  }
  options_.recipients.Deliver(std::move(actions.list));
  for (const v1::StateEvent& event : batch) {
    if (event.has_session_closed()) {
      options_.recipients.Close(event.session_closed().session_id(), absl::OkStatus());
    }
  }
}

v1::RestoreEvent EventLoop::RestoreEvent() const {
  v1::RestoreEvent restore;
  restore.set_term(term_);
  *restore.mutable_lease() = ToProtoDuration(options_.lease);
  *restore.mutable_heartbeat_interval() = ToProtoDuration(options_.heartbeat);
  return restore;
}

absl::Status EventLoop::Restore() {
  MESHRUN_ASSIGN_OR_RETURN(const std::vector<v1::StateRow> rows, options_.store.Load());
  v1::StateEvent event;
  *event.mutable_restore() = RestoreEvent();
  event.mutable_restore()->mutable_rows()->Add(rows.begin(), rows.end());
  std::vector<v1::StateEvent> batch;
  batch.push_back(Stamped(std::move(event)));
  Actions actions = StepBatch(batch);
  MESHRUN_RETURN_IF_ERROR(actions.damage);
  return options_.store.Commit(actions.rows);
}

void EventLoop::EnterReadOnly(const absl::Status& why) {
  const std::string reason =
      fmt::format("the state cannot be written: {}", std::string(why.message()));
  log::Error("read-only from now on", {{"why", why}});
  {
    MutexLock lock(mu_);
    read_only_reason_ = reason;
  }
  options_.recipients.EndCalls(absl::UnavailableError("the coordinator is read-only: " + reason));
  read_only_ = true;
  next_attempt_ = options_.clock.SteadyNow() + kAttemptInterval;
  // Events that were stepped but not written never happened. The rows of this restore stay
  // unwritten.
  const auto rows = options_.store.Load();
  v1::StateEvent event;
  *event.mutable_restore() = RestoreEvent();
  if (rows.ok()) event.mutable_restore()->mutable_rows()->Add(rows->begin(), rows->end());
  std::vector<v1::StateEvent> batch;
  batch.push_back(Stamped(std::move(event)));
  frozen_now_nanos_ = batch.back().now_nanos();
  readable_ = StepBatch(batch).damage.ok() && rows.ok();
}

void EventLoop::TryToLeaveReadOnly() {
  next_attempt_ = options_.clock.SteadyNow() + kAttemptInterval;
  if (!options_.store.Commit({MetaRow("term", std::to_string(term_))}).ok()) return;
  if (const absl::Status status = Restore(); !status.ok()) {
    log::Error("still read-only", {{"why", status}});
    return;
  }
  log::Info("the state can be written again");
  options_.recipients.EndSessions(absl::UnavailableError(
      "the coordinator was read-only and has not kept what was said meanwhile: say Hello again"));
  read_only_ = false;
  readable_ = true;
  MutexLock lock(mu_);
  read_only_reason_.clear();
}

void EventLoop::AnswerReadOnly(const v1::SessionMessage& event) {
  const v1::OpenSessionRequest& message = event.message();
  v1::OpenSessionResponse reply;
  reply.mutable_fence()->set_term(term_);
  reply.mutable_fence()->set_incarnation(message.fence().incarnation());
  if (message.has_hello()) {
    const v1::RestoreEvent settings = RestoreEvent();
    *reply.mutable_welcome()->mutable_lease() = settings.lease();
    *reply.mutable_welcome()->mutable_heartbeat_interval() = settings.heartbeat_interval();
  } else if (message.has_heartbeat()) {
    reply.mutable_heartbeat_reply()->set_sequence(message.heartbeat().sequence());
  } else {
    return;
  }
  options_.recipients.Send(event.session_id(), std::move(reply));
}

void EventLoop::ProcessReadOnly(std::vector<v1::StateEvent> batch) {
  const absl::Status refusal =
      absl::UnavailableError("the coordinator is read-only: " + read_only_reason());
  for (v1::StateEvent& event : batch) {
    // No lease ends while nobody may renew it.
    event.set_now_nanos(frozen_now_nanos_);
    if (event.has_session_message()) {
      AnswerReadOnly(event.session_message());
    } else if (event.has_session_closed()) {
      options_.recipients.Close(event.session_closed().session_id(), absl::OkStatus());
    } else if (IsRead(event) && (readable_ || event.has_call_cancelled())) {
      options_.recipients.Deliver(machine_.Step(event).list);
      // Nothing changes from here on, so a watch has shown all; no call outlives this state
      // machine.
      if (event.has_watch_job()) options_.recipients.Reply(event.call_id(), refusal, nullptr);
    } else if (event.call_id() != 0) {
      options_.recipients.Reply(event.call_id(), refusal, nullptr);
    }
  }
}

}  // namespace meshrun::coordinator
