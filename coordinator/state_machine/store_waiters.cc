// Calls of the rendezvous store that wait for keys or for a unique id. Those that wait in a barrier
// are in barriers.cc.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/state_machine/rendezvous_store.h"
#include "core/proto_time.h"

namespace meshrun::coordinator {

template <typename Request>
void RendezvousStore::AwaitKeys(uint64_t call_id, const Request& request, Waiter::Kind kind) {
  Job* job = Admit(call_id, request.fence());
  if (job == nullptr) return;
  Wait(call_id, *job,
       Waiter{kind,
              job->id(),
              {request.keys().begin(), request.keys().end()},
              FromProto(request.timeout())});
}

void RendezvousStore::Get(uint64_t call_id, const v1::GetValuesRequest& request) {
  AwaitKeys(call_id, request, Waiter::Kind::kGet);
}

void RendezvousStore::WaitForKeys(uint64_t call_id, const v1::WaitKeysRequest& request) {
  AwaitKeys(call_id, request, Waiter::Kind::kWait);
}

void RendezvousStore::AwaitId(uint64_t call_id, const v1::AwaitUniqueIdRequest& request) {
  Job* job = Admit(call_id, request.fence(), request.rank());
  if (job == nullptr) return;
  Wait(call_id, *job,
       Waiter{Waiter::Kind::kUniqueId, job->id(), {request.group()}, FromProto(request.timeout())});
}

void RendezvousStore::Wait(uint64_t call_id, const Job& job, Waiter waiter) {
  Generation& generation = Of(job);
  if (IsReady(generation, waiter)) {
    Deliver(call_id, generation, waiter);
    return;
  }
  if (waiter.timeout <= std::chrono::nanoseconds(0)) {
    const std::string missing = Missing(generation, waiter);
    context_.Reply(call_id, waiter.kind == Waiter::Kind::kUniqueId
                                ? absl::DeadlineExceededError("not published yet: " + missing)
                                : absl::NotFoundError("not set: " + missing));
    return;
  }
  auto& index =
      waiter.kind == Waiter::Kind::kUniqueId ? generation.id_waiters : generation.key_waiters;
  for (const std::string& key : waiter.keys) index[key].insert(call_id);
  deadlines_.Set(call_id, context_.now + waiter.timeout);
  waiters_[call_id] = std::move(waiter);
}

void RendezvousStore::Wake(const Job& job, const std::set<uint64_t>& waiters) {
  // A copy: Forget takes calls out of `waiters`, and with the last one the set itself goes.
  const std::vector<uint64_t> calls(waiters.begin(), waiters.end());
  for (const uint64_t call_id : calls) {
    const Waiter waiter = waiters_.at(call_id);
    if (!IsReady(Of(job), waiter)) continue;
    Forget(call_id);
    Deliver(call_id, Of(job), waiter);
  }
}

bool RendezvousStore::IsReady(const Generation& generation, const Waiter& waiter) const {
  const auto& have =
      waiter.kind == Waiter::Kind::kUniqueId ? generation.unique_ids : generation.values;
  return std::all_of(waiter.keys.begin(), waiter.keys.end(),
                     [&](const std::string& key) { return have.contains(key); });
}

void RendezvousStore::Deliver(uint64_t call_id, const Generation& generation,
                              const Waiter& waiter) {
  if (waiter.kind == Waiter::Kind::kGet) {
    v1::GetValuesResponse response;
    for (const std::string& key : waiter.keys) response.add_values(generation.values.at(key));
    context_.Reply(call_id, std::move(response));
  } else if (waiter.kind == Waiter::Kind::kWait) {
    context_.Reply(call_id, v1::WaitKeysResponse());
  } else {
    v1::AwaitUniqueIdResponse response;
    response.set_unique_id(generation.unique_ids.at(waiter.keys.front()));
    context_.Reply(call_id, std::move(response));
  }
}

// Takes a waiting call out of every index.
void RendezvousStore::Forget(uint64_t call_id) {
  deadlines_.Clear(call_id);
  const auto it = waiters_.find(call_id);
  if (it == waiters_.end()) return;
  Generation& generation = generations_[it->second.job_id];
  auto& index =
      it->second.kind == Waiter::Kind::kUniqueId ? generation.id_waiters : generation.key_waiters;
  for (const std::string& key : it->second.keys) {
    const auto entry = index.find(key);
    if (entry == index.end()) continue;
    entry->second.erase(call_id);
    if (entry->second.empty()) index.erase(entry);
  }
  waiters_.erase(it);
}

std::string RendezvousStore::Missing(const Generation& generation, const Waiter& waiter) const {
  const bool ids = waiter.kind == Waiter::Kind::kUniqueId;
  const auto& have = ids ? generation.unique_ids : generation.values;
  std::string out;
  size_t missing = 0;
  for (const std::string& key : waiter.keys) {
    if (have.contains(key)) continue;
    if (++missing <= 8) out += fmt::format("{}'{}'", out.empty() ? "" : ", ", key);
  }
  if (missing > 8) out += fmt::format(" and {} more", missing - 8);
  return (ids ? "unique id of group " : missing == 1 ? "key " : "keys ") + out;
}

}  // namespace meshrun::coordinator
