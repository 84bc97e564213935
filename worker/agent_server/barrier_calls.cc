#include "worker/agent_server/barrier_calls.h"

#include <algorithm>
#include <utility>

#include "core/proto_time.h"
#include "core/rpc/status_conversion.h"

namespace meshrun::worker {
namespace {

// Ranks with very different timeouts do not share a call, which has one.
bool AreSimilar(const v1::EnterBarrierRequest& a, const v1::EnterBarrierRequest& b) {
  const std::chrono::nanoseconds first = FromProto(a.timeout()), second = FromProto(b.timeout());
  return std::max(first, second) - std::min(first, second) <= std::max(first, second) / 10;
}

}  // namespace

void BarrierCalls::Enter(uint64_t id, Entry entry) {
  const v1::EnterBarrierRequest& request = entry.request;
  v1::EnterBarrierRequest ranks;
  *ranks.mutable_ranks() = request.ranks();
  const Key key = {{request.fence().job_id(), request.fence().generation(), request.name()},
                   ranks.SerializeAsString()};
  const size_t local = entry.local;
  Waiting waiting{std::move(entry), {}};
  waiting.expires = Clock::now() + FromProto(waiting.entry.request.timeout());
  const auto found = gathering_.find(key);
  const bool joins =
      found != gathering_.end() &&
      AreSimilar(found->second->entries.begin()->second.entry.request, waiting.entry.request);
  Call& call = joins ? *found->second : NewCall(key);
  Add(call, id, std::move(waiting));
  const auto sent = sent_.find(key.first);
  const size_t here = call.entries.size() + (sent == sent_.end() ? 0 : sent->second);
  if (here >= local || (found != gathering_.end() && !joins)) {
    Send(call);
  } else if (!joins) {
    gathering_[key] = &call;
    call.timer = loop_.After(kGather, [this, &call] { Send(call); });
  }
}

BarrierCalls::Call& BarrierCalls::NewCall(const Key& key) {
  auto made = std::make_unique<Call>();
  made->key = key;
  Call& call = *made;
  calls_[&call] = std::move(made);
  return call;
}

void BarrierCalls::Add(Call& call, uint64_t id, Waiting waiting) {
  by_entry_[id] = &call;
  call.entries.emplace(id, std::move(waiting));
}

void BarrierCalls::Leave(uint64_t id) {
  const auto found = by_entry_.find(id);
  if (found == by_entry_.end()) return;
  Call& call = *found->second;
  Waiting& waiting = call.entries.at(id);
  if (call.sent) {
    waiting.leaves = true;
    call.context.TryCancel();
    return;
  }
  const auto done = std::move(waiting.entry.done);
  by_entry_.erase(found);
  call.entries.erase(id);
  if (call.entries.empty()) {
    loop_.Cancel(call.timer);
    gathering_.erase(call.key);
    calls_.erase(&call);
  }
  done(grpc::Status::CANCELLED);
}

void BarrierCalls::Send(Call& call) {
  loop_.Cancel(call.timer);
  if (const auto it = gathering_.find(call.key); it != gathering_.end() && it->second == &call) {
    gathering_.erase(it);
  }
  call.sent = true;
  sent_[call.key.first] += call.entries.size();
  const Clock::time_point now = Clock::now();
  Clock::time_point expires = call.entries.begin()->second.expires;
  auto deadline = call.entries.begin()->second.entry.deadline;
  for (auto& [id, waiting] : call.entries) {
    v1::EnterBarrierRequest& request = waiting.entry.request;
    expires = std::min(expires, waiting.expires);
    deadline = std::max(deadline, waiting.entry.deadline);
    if (id == call.entries.begin()->first) {
      call.request = request;
      continue;
    }
    v1::BarrierEntry& other = *call.request.add_others();
    other.set_rank(request.rank());
    other.set_request_id(request.request_id());
  }
  *call.request.mutable_timeout() =
      ToProtoDuration(std::max<std::chrono::nanoseconds>(expires - now, {}));
  call.context.set_deadline(deadline);
  start_(&call.context, &call.request, &call.response, [this, &call](const grpc::Status& status) {
    loop_.Post([this, &call, status] { OnAnswer(call, status); });
  });
}

void BarrierCalls::OnAnswer(Call& answered, const grpc::Status& status) {
  const std::unique_ptr<Call> call = std::move(calls_.extract(&answered).mapped());
  if (const auto it = sent_.find(call->key.first); (it->second -= call->entries.size()) == 0) {
    sent_.erase(it);
  }
  std::map<uint64_t, Waiting> stay;
  for (auto& [id, waiting] : call->entries) {
    by_entry_.erase(id);
    if (waiting.leaves) {
      waiting.entry.done(grpc::Status::CANCELLED);
    } else {
      stay.emplace(id, std::move(waiting));
    }
  }
  const bool cut = stay.size() < call->entries.size();
  if (status.ok() && call->response.one_by_one()) {
    for (auto& [id, waiting] : stay) {
      Call& own = NewCall(call->key);
      Add(own, id, std::move(waiting));
      Send(own);
    }
  } else if (cut && status.error_code() == grpc::StatusCode::CANCELLED && !stay.empty()) {
    Call& rest = NewCall(call->key);
    for (auto& [id, waiting] : stay) Add(rest, id, std::move(waiting));
    Send(rest);
  } else {
    for (auto& [id, waiting] : stay) waiting.entry.done(rpc::EndOf(status, cut));
  }
}

}  // namespace meshrun::worker
