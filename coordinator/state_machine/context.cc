#include "coordinator/state_machine/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/proto_time.h"
#include "core/utf8.h"

namespace meshrun::coordinator {
namespace {

// What an event says: 10,000 are kept.
constexpr size_t kLongestMessage = 4096;

// Events that somebody has asked for, where they come from a call.
bool IsAskedFor(std::string_view kind) {
  constexpr std::string_view kKinds[] = {
      "JobSubmitted", "CancelRequested", "JobHeld",       "JobReleased", "PriorityChanged",
      "JobSignaled",  "NodeDrained",     "NodeUndrained", "NodeRemoved", "PolicyChanged"};
  return std::find(std::begin(kKinds), std::end(kKinds), kind) != std::end(kKinds);
}

}  // namespace

void Context::Send(uint64_t session_id, v1::OpenSessionResponse message) {
  message.mutable_fence()->set_term(term);
  actions_.list.push_back(SendToSession{session_id, std::move(message)});
}

void Context::Close(uint64_t session_id, absl::Status status) {
  if (session_id == awaited_session_) outcome_ = status;
  actions_.list.push_back(CloseSession{session_id, std::move(status)});
}

void Context::Reply(uint64_t call_id, absl::Status error) {
  if (call_id == awaited_call_) outcome_ = error;
  if (call_id == 0) return;
  actions_.list.push_back(ReplyToCall{call_id, std::move(error), nullptr});
}

void Context::Record(std::string_view kind, std::string_view job_id, std::string_view node_id,
                     std::string message) {
  v1::ClusterEvent event;
  event.set_sequence(next_sequence_++);
  *event.mutable_at() = ToProtoTimestamp(wall);
  event.set_kind(std::string(kind));
  event.set_job_id(std::string(job_id));
  event.set_node_id(std::string(node_id));
  if (message.size() > kLongestMessage) message.resize(Utf8Prefix(message, kLongestMessage).size());
  event.set_message(std::move(message));
  if (!actor.empty() && IsAskedFor(kind)) event.set_actor(actor);
  if (const auto found = private_jobs.find(event.job_id()); found != private_jobs.end())
    event.set_private_of(found->second);
  causes_.Link(event);
  tallies.OnEvent(kind);
  Put(v1::STATE_TABLE_EVENTS, KeyNumber(event.sequence()), event);
  Keep(std::move(event));
}

void Context::RestoreEvent(v1::ClusterEvent event) {
  next_sequence_ = std::max(next_sequence_, event.sequence() + 1);
  causes_.Restore(event);
  Keep(std::move(event));
}

void Context::Keep(v1::ClusterEvent event) {
  if (!event.job_id().empty()) of_job_[event.job_id()].push_back(event.sequence());
  events_.push_back(std::move(event));
  if (events_.size() <= kMaxEvents) return;
  const v1::ClusterEvent& oldest = events_.front();
  Erase(v1::STATE_TABLE_EVENTS, KeyNumber(oldest.sequence()));
  if (const auto it = of_job_.find(oldest.job_id()); it != of_job_.end()) {
    it->second.pop_front();
    if (it->second.empty()) of_job_.erase(it);
  }
  events_.pop_front();
}

const v1::ClusterEvent* Context::FindEvent(uint64_t sequence) const {
  const auto it = std::lower_bound(
      events_.begin(), events_.end(), sequence,
      [](const v1::ClusterEvent& event, uint64_t wanted) { return event.sequence() < wanted; });
  return it == events_.end() || it->sequence() != sequence ? nullptr : &*it;
}

std::vector<const v1::ClusterEvent*> Context::EventsOf(const std::string& job_id) const {
  std::vector<const v1::ClusterEvent*> out;
  const auto it = of_job_.find(job_id);
  if (it == of_job_.end()) return out;
  for (const uint64_t sequence : it->second) out.push_back(FindEvent(sequence));
  return out;
}

void Context::Damaged(const v1::StateRow& row) {
  actions_.damage.Update(absl::DataLossError(fmt::format(
      "the state is damaged: table {}, key '{}' cannot be read; restore the state directory from "
      "a copy",
      v1::StateTable_Name(row.table()), row.key())));
}

void Context::Put(v1::StateTable table, std::string key, std::string value) {
  v1::StateRow& row = rows_.emplace_back();
  row.set_table(table);
  row.set_key(std::move(key));
  row.set_value(std::move(value));
}

void Context::Erase(v1::StateTable table, std::string key) {
  v1::StateRow& row = rows_.emplace_back();
  row.set_table(table);
  row.set_key(std::move(key));
  row.set_erased(true);
}

Actions Context::Take(bool end_of_batch) {
  Actions out = std::exchange(actions_, {});
  if (end_of_batch) out.rows = std::exchange(rows_, {});
  return out;
}

std::string KeyNumber(uint64_t number) { return fmt::format("{:020}", number); }

std::string GenerationKey(std::string_view job_id, uint64_t generation) {
  return fmt::format("{}/{:020}", job_id, generation);
}

std::optional<GenerationKeyParts> ParseGenerationKey(std::string_view key) {
  const size_t slash = key.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  GenerationKeyParts parts;
  parts.job_id = key.substr(0, slash);
  key.remove_prefix(slash + 1);
  const size_t end = std::min(key.find('/'), key.size());
  const auto [stop, error] = std::from_chars(key.data(), key.data() + end, parts.generation);
  if (error != std::errc{} || stop != key.data() + end) return std::nullopt;
  if (end < key.size()) parts.rest = key.substr(end + 1);
  return parts;
}

}  // namespace meshrun::coordinator
