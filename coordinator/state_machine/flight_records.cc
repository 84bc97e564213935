#include "coordinator/state_machine/flight_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/state_machine/privacy.h"
#include "core/proto_time.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

constexpr std::chrono::seconds kTimeout(5);
constexpr std::chrono::minutes kLongestTimeout(1);

}  // namespace

void FlightRecords::Collect(uint64_t call_id, const v1::GetFlightRecordsRequest& request) {
  const auto job = jobs_.Lookup(request.job_id());
  if (!job.ok()) {
    context_.Reply(call_id, job.status());
    return;
  }
  const v1::Job& view = (*job)->view;
  if (absl::Status status = CheckMaySee(context_, view); !status.ok()) {
    context_.Reply(call_id, std::move(status));
    return;
  }
  if (view.state() != v1::JOB_STATE_RUNNING && view.state() != v1::JOB_STATE_QUIESCING) {
    context_.Reply(call_id, absl::FailedPreconditionError(fmt::format(
                                "job {} is {}: only ranks that run have a flight record; what was "
                                "dumped when a collective failed is in 'meshrun logs'",
                                view.job_id(), StateName(view.state()))));
    return;
  }
  Collection& collection = collections_[call_id];
  collection.job_id = view.job_id();
  collection.generation = view.generation();
  collection.timeout = request.has_timeout()
                           ? std::clamp<std::chrono::nanoseconds>(FromProto(request.timeout()),
                                                                  SteadyNanos(0), kLongestTimeout)
                           : std::chrono::nanoseconds(kTimeout);
  collection.deadline = context_.now + collection.timeout;
  for (const Member& member : (*job)->members) Ask(**job, member, call_id, collection);
  EndIfComplete(call_id);
}

void FlightRecords::Ask(const Job& job, const Member& member, uint64_t call_id,
                        Collection& collection) {
  const Node* const node = nodes_.Find(member.node_id);
  const bool is_here = !member.ended && node != nullptr && node->session_id != 0;
  for (int rank = member.first_rank; rank < member.first_rank + member.rank_count; ++rank) {
    const v1::RankStatus& status = job.view.ranks(rank);
    if (status.state() == v1::RANK_STATE_EXITED || status.state() == v1::RANK_STATE_LOST) {
      Refuse(call_id, collection, rank, "it has ended");
    } else if (!is_here) {
      Refuse(call_id, collection, rank,
             fmt::format("its host {} is not connected", status.node_name()));
    } else {
      collection.missing.insert(rank);
    }
  }
  if (!is_here) return;
  v1::OpenSessionResponse message = MessageTo(*node, job.id(), job.view.generation());
  message.mutable_collect_flight_records()->set_request(call_id);
  context_.Send(node->session_id, std::move(message));
}

void FlightRecords::Upload(uint64_t call_id, const v1::UploadFlightRecordRequest& request) {
  const auto found = collections_.find(request.request());
  if (found == collections_.end() || found->second.job_id != request.fence().job_id() ||
      found->second.generation != request.fence().generation() ||
      found->second.missing.erase(request.record().rank()) == 0) {
    context_.Reply(call_id, absl::NotFoundError(fmt::format(
                                "the client that asked for the flight record of rank {} has gone",
                                request.record().rank())));
    return;
  }
  Answer(found->first, found->second, request.record());
  context_.Reply(call_id, v1::UploadFlightRecordResponse());
  EndIfComplete(request.request());
}

void FlightRecords::CancelCall(uint64_t call_id) {
  if (collections_.erase(call_id) == 0) return;
  context_.Reply(call_id, absl::CancelledError("the reader went away"));
}

void FlightRecords::Answer(uint64_t call_id, const Collection& collection,
                           v1::FlightRecord record) {
  auto item = std::make_shared<v1::GetFlightRecordsResponse>();
  *item->mutable_record() = std::move(record);
  item->set_generation(collection.generation);
  context_.Add(StreamItem{call_id, std::move(item)});
}

void FlightRecords::Refuse(uint64_t call_id, const Collection& collection, int rank,
                           std::string why) {
  v1::FlightRecord record;
  record.set_rank(rank);
  record.set_error(std::move(why));
  Answer(call_id, collection, std::move(record));
}

void FlightRecords::EndIfComplete(uint64_t call_id) {
  const auto found = collections_.find(call_id);
  if (found == collections_.end() || !found->second.missing.empty()) return;
  collections_.erase(found);
  context_.Add(ReplyToCall{call_id, absl::OkStatus(), nullptr});
}

void FlightRecords::ExpireDue() {
  for (auto it = collections_.begin(); it != collections_.end();) {
    const auto [call_id, collection] = *it;
    if (collection.deadline > context_.now) {
      ++it;
      continue;
    }
    for (const int rank : collection.missing) {
      Refuse(call_id, collection, rank,
             fmt::format("no answer within {}: it is stopped, or has no process group on ucx",
                         FormatDuration(collection.timeout)));
    }
    it = collections_.erase(it);
    context_.Add(ReplyToCall{call_id, absl::OkStatus(), nullptr});
  }
}

std::optional<SteadyNanos> FlightRecords::NextDeadline() const {
  std::optional<SteadyNanos> next;
  for (const auto& [call_id, collection] : collections_) {
    if (!next || collection.deadline < *next) next = collection.deadline;
  }
  return next;
}

}  // namespace meshrun::coordinator
