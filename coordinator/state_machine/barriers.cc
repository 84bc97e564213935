// Barriers of the rendezvous store, and the calls that wait in it.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state_machine/rendezvous_store.h"
#include "core/proto_time.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

// Each rank that the call speaks for.
std::vector<v1::BarrierEntry> EntriesOf(const v1::EnterBarrierRequest& request) {
  std::vector<v1::BarrierEntry> entries(1);
  entries[0].set_rank(request.rank());
  entries[0].set_request_id(request.request_id());
  entries.insert(entries.end(), request.others().begin(), request.others().end());
  return entries;
}

std::vector<int> RanksOf(const v1::EnterBarrierRequest& request, int world_size) {
  std::vector<int> ranks(request.ranks().begin(), request.ranks().end());
  for (int rank = 0; request.ranks().empty() && rank < world_size; ++rank) ranks.push_back(rank);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace

void RendezvousStore::Enter(uint64_t call_id, const v1::EnterBarrierRequest& request) {
  Job* job = Admit(call_id, request.fence(), request.rank());
  if (job == nullptr) return;
  const std::vector<v1::BarrierEntry> entries = EntriesOf(request);
  if (!NoneHasPassed(call_id, *job, entries)) return;
  Generation& generation = Of(*job);
  const auto known = generation.barriers.find(request.name());
  const int world = job->view.ranks_size();
  // In the usual case thousands of calls need no list of their own.
  const bool same =
      known != generation.barriers.end() && known->second.everyone && request.ranks().empty();
  const std::vector<int> own = same ? std::vector<int>() : RanksOf(request, world);
  const std::vector<int>& ranks = same ? known->second.ranks : own;
  for (const v1::BarrierEntry& entry : entries) {
    if (std::binary_search(ranks.begin(), ranks.end(), entry.rank()) && ranks.front() >= 0 &&
        ranks.back() < world) {
      continue;
    }
    context_.Reply(call_id,
                   absl::InvalidArgumentError(fmt::format(
                       "barrier '{}' of ranks {} in a world of {}: rank {} is not among them, or "
                       "one of them does not exist",
                       request.name(), FormatRanks(ranks), world, entry.rank())));
    return;
  }
  if (known != generation.barriers.end() && !same && known->second.ranks != ranks) {
    context_.Reply(call_id,
                   absl::InvalidArgumentError(fmt::format(
                       "barrier '{}' was entered by rank {} for ranks {}, and by rank {} for "
                       "ranks {}",
                       request.name(), known->second.arrived.begin()->first,
                       FormatRanks(known->second.ranks), request.rank(), FormatRanks(ranks))));
    return;
  }
  // A rank that leaves later fails the barrier then.
  for (size_t i = 0; known == generation.barriers.end() && i < ranks.size(); ++i) {
    const v1::RankState state = job->view.ranks(ranks[i]).state();
    if (state != v1::RANK_STATE_EXITED && state != v1::RANK_STATE_LOST) continue;
    context_.Reply(call_id,
                   absl::AbortedError(fmt::format(
                       "barrier '{}' can never be complete: rank {} has left the generation",
                       request.name(), ranks[i])));
    return;
  }
  Barrier& barrier = generation.barriers[request.name()];
  if (barrier.ranks.empty()) {
    barrier.ranks = ranks;
    barrier.everyone = request.ranks().empty();
  }
  BarrierPlace& place = barrier_calls_[call_id];
  place = {job->id(), request.name(), {}, FromProto(request.timeout())};
  for (const v1::BarrierEntry& entry : entries) {
    Arrival& arrival = barrier.arrived[entry.rank()];
    if (arrival.call_id == call_id) continue;
    // The same rank again, over a new connection: the newer call waits.
    if (arrival.call_id != 0) LeaveCall(arrival.call_id, entry.rank());
    arrival = {call_id, entry.request_id()};
    place.ranks.push_back(entry.rank());
  }
  deadlines_.Set(call_id, context_.now + place.timeout);
  if (barrier.arrived.size() < barrier.ranks.size()) return;
  Barrier complete = std::move(barrier);
  generation.barriers.erase(request.name());
  Open(*job, std::move(complete));
}

bool RendezvousStore::NoneHasPassed(uint64_t call_id, const Job& job,
                                    const std::vector<v1::BarrierEntry>& entries) {
  const Generation& generation = Of(job);
  const auto passed = static_cast<size_t>(
      std::count_if(entries.begin(), entries.end(), [&](const v1::BarrierEntry& entry) {
        return !entry.request_id().empty() &&
               generation.answers.contains(kBarrierAnswers + entry.request_id());
      }));
  if (passed == 0) return true;
  v1::EnterBarrierResponse response;
  response.set_one_by_one(passed < entries.size());
  context_.Reply(call_id, std::move(response));
  return false;
}

void RendezvousStore::LeaveCall(uint64_t call_id, int rank) {
  const auto it = barrier_calls_.find(call_id);
  std::erase(it->second.ranks, rank);
  if (!it->second.ranks.empty()) return;
  barrier_calls_.erase(it);
  deadlines_.Clear(call_id);
  context_.Reply(call_id, absl::CancelledError("the same rank entered this barrier again"));
}

void RendezvousStore::Open(const Job& job, Barrier&& barrier) {
  std::map<uint64_t, std::vector<std::string>> calls;
  for (auto& [rank, arrival] : barrier.arrived) {
    std::vector<std::string>& ids = calls[arrival.call_id];
    if (!arrival.request_id.empty()) ids.push_back(std::move(arrival.request_id));
  }
  for (const auto& [call_id, request_ids] : calls) {
    deadlines_.Clear(call_id);
    barrier_calls_.erase(call_id);
    RememberPassed(job, request_ids);
    context_.Reply(call_id, v1::EnterBarrierResponse());
  }
  DropOldAnswers(job);
}

void RendezvousStore::RememberPassed(const Job& job, const std::vector<std::string>& request_ids) {
  if (request_ids.empty()) return;
  v1::BarrierPassed passed;
  passed.mutable_other_request_ids()->Add(request_ids.begin() + 1, request_ids.end());
  context_.Put(v1::STATE_TABLE_REQUESTS,
               fmt::format("{}/{}{}", GenerationKey(job.id(), job.view.generation()),
                           kBarrierAnswers, request_ids.front()),
               passed);
  for (const std::string& id : request_ids) {
    Keep(Of(job), kBarrierAnswers + id, {"", /*shares_row=*/id != request_ids.front()});
  }
}

void RendezvousStore::FailBarrier(Generation& generation,
                                  std::map<std::string, Barrier>::iterator it,
                                  const absl::Status& status) {
  const Barrier barrier = std::move(it->second);
  generation.barriers.erase(it);
  for (const auto& [rank, arrival] : barrier.arrived) {
    if (barrier_calls_.erase(arrival.call_id) == 0) continue;
    deadlines_.Clear(arrival.call_id);
    context_.Reply(arrival.call_id, status);
  }
}

void RendezvousStore::OnRankGone(const Job& job, int rank, const std::string& how) {
  const auto it = generations_.find(job.id());
  if (it == generations_.end()) return;
  Generation& generation = it->second;
  for (auto barrier = generation.barriers.begin(); barrier != generation.barriers.end();) {
    const auto next = std::next(barrier);
    if (std::binary_search(barrier->second.ranks.begin(), barrier->second.ranks.end(), rank)) {
      FailBarrier(generation, barrier,
                  absl::AbortedError(fmt::format("barrier '{}': {}", barrier->first, how)));
    }
    barrier = next;
  }
}

bool RendezvousStore::CancelCall(uint64_t call_id) {
  if (const auto it = barrier_calls_.find(call_id); it != barrier_calls_.end()) {
    const BarrierPlace place = std::move(it->second);
    barrier_calls_.erase(it);
    deadlines_.Clear(call_id);
    Withdraw(place);
  } else if (waiters_.contains(call_id)) {
    Forget(call_id);
  } else {
    return false;
  }
  context_.Reply(call_id, absl::CancelledError("the caller went away"));
  return true;
}

void RendezvousStore::ExpireDue() {
  while (const auto call_id = deadlines_.PopDue(context_.now)) {
    if (const auto it = waiters_.find(*call_id); it != waiters_.end()) {
      const Waiter waiter = it->second;
      const std::string missing = Missing(generations_[waiter.job_id], waiter);
      Forget(*call_id);
      context_.Reply(*call_id,
                     absl::DeadlineExceededError(fmt::format("{}: not there after {}", missing,
                                                             FormatDuration(waiter.timeout))));
      continue;
    }
    const BarrierPlace place = std::move(barrier_calls_.at(*call_id));
    barrier_calls_.erase(*call_id);
    const Barrier& barrier = generations_.at(place.job_id).barriers.at(place.name);
    std::vector<int> missing;
    std::vector<int> arrived;
    for (const int rank : barrier.ranks) {
      (barrier.arrived.contains(rank) ? arrived : missing).push_back(rank);
    }
    context_.Reply(
        *call_id,
        absl::DeadlineExceededError(fmt::format(
            "barrier '{}': after {} ranks {} have arrived, and ranks {} are missing", place.name,
            FormatDuration(place.timeout), FormatRanks(arrived), FormatRanks(missing))));
    Withdraw(place);
  }
}

void RendezvousStore::Withdraw(const BarrierPlace& place) {
  auto& barriers = generations_[place.job_id].barriers;
  const auto barrier = barriers.find(place.name);
  if (barrier == barriers.end()) return;
  for (const int rank : place.ranks) barrier->second.arrived.erase(rank);
  if (barrier->second.arrived.empty()) barriers.erase(barrier);
}

}  // namespace meshrun::coordinator
