// Barriers of the rendezvous store, and the calls that wait in it.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state_machine/rendezvous_store.h"
#include "core/proto_time.h"
#include "core/text.h"

namespace meshrun::coordinator {

void RendezvousStore::Enter(uint64_t call_id, const v1::EnterBarrierRequest& request) {
  Job* job = Admit(call_id, request.fence(), request.rank());
  if (job == nullptr ||
      Repeat<v1::EnterBarrierResponse>(call_id, *job, "barrier", request.request_id())) {
    return;
  }
  std::vector<int> ranks(request.ranks().begin(), request.ranks().end());
  if (ranks.empty()) {
    for (int rank = 0; rank < job->view.ranks_size(); ++rank) ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  if (!std::binary_search(ranks.begin(), ranks.end(), request.rank()) || ranks.front() < 0 ||
      ranks.back() >= job->view.ranks_size()) {
    context_.Reply(
        call_id, absl::InvalidArgumentError(fmt::format(
                     "barrier '{}' of ranks {} in a world of {}: rank {} is not among them, or "
                     "one of them does not exist",
                     request.name(), FormatRanks(ranks), job->view.ranks_size(), request.rank())));
    return;
  }
  Generation& generation = Of(*job);
  Barrier& barrier = generation.barriers[request.name()];
  if (barrier.arrived.empty()) {
    barrier.ranks = ranks;
  } else if (barrier.ranks != ranks) {
    context_.Reply(call_id,
                   absl::InvalidArgumentError(fmt::format(
                       "barrier '{}' was entered by rank {} for ranks {}, and by rank {} for "
                       "ranks {}",
                       request.name(), barrier.arrived.begin()->first, FormatRanks(barrier.ranks),
                       request.rank(), FormatRanks(ranks))));
    return;
  }
  for (const int rank : ranks) {
    const v1::RankState state = job->view.ranks(rank).state();
    if (state != v1::RANK_STATE_EXITED && state != v1::RANK_STATE_LOST) continue;
    context_.Reply(call_id,
                   absl::AbortedError(fmt::format(
                       "barrier '{}' can never be complete: rank {} has left the generation",
                       request.name(), rank)));
    if (barrier.arrived.empty()) generation.barriers.erase(request.name());
    return;
  }
  Arrival& arrival = barrier.arrived[request.rank()];
  if (arrival.call_id != 0) {
    // The same rank again, over a new connection: the newer call waits.
    deadlines_.Clear(arrival.call_id);
    barrier_calls_.erase(arrival.call_id);
    context_.Reply(arrival.call_id,
                   absl::CancelledError("the same rank entered this barrier again"));
  }
  arrival = {call_id, request.request_id()};
  const std::chrono::nanoseconds timeout = FromProto(request.timeout());
  barrier_calls_[call_id] = {job->id(), request.name(), request.rank(), timeout};
  deadlines_.Set(call_id, context_.now + timeout);
  if (barrier.arrived.size() < barrier.ranks.size()) return;
  const Barrier complete = std::move(barrier);
  generation.barriers.erase(request.name());
  for (const auto& [rank, arrived] : complete.arrived) {
    deadlines_.Clear(arrived.call_id);
    barrier_calls_.erase(arrived.call_id);
    Answer(arrived.call_id, *job, "barrier", arrived.request_id, v1::EnterBarrierResponse());
  }
}

void RendezvousStore::FailBarrier(Generation& generation,
                                  std::map<std::string, Barrier>::iterator it,
                                  const absl::Status& status) {
  const Barrier barrier = std::move(it->second);
  generation.barriers.erase(it);
  for (const auto& [rank, arrival] : barrier.arrived) {
    deadlines_.Clear(arrival.call_id);
    barrier_calls_.erase(arrival.call_id);
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
    const BarrierPlace place = it->second;
    barrier_calls_.erase(it);
    deadlines_.Clear(call_id);
    auto& barriers = generations_[place.job_id].barriers;
    if (const auto barrier = barriers.find(place.name); barrier != barriers.end()) {
      barrier->second.arrived.erase(place.rank);
      if (barrier->second.arrived.empty()) barriers.erase(barrier);
    }
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
    const BarrierPlace place = barrier_calls_.at(*call_id);
    barrier_calls_.erase(*call_id);
    auto& barriers = generations_[place.job_id].barriers;
    const auto barrier = barriers.find(place.name);
    std::vector<int> missing;
    std::vector<int> arrived;
    for (const int rank : barrier->second.ranks) {
      (barrier->second.arrived.contains(rank) ? arrived : missing).push_back(rank);
    }
    context_.Reply(
        *call_id,
        absl::DeadlineExceededError(fmt::format(
            "barrier '{}': after {} ranks {} have arrived, and ranks {} are missing", place.name,
            FormatDuration(place.timeout), FormatRanks(arrived), FormatRanks(missing))));
    barrier->second.arrived.erase(place.rank);
    if (barrier->second.arrived.empty()) barriers.erase(barrier);
  }
}

}  // namespace meshrun::coordinator
