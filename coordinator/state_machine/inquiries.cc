#include "coordinator/state_machine/inquiries.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "coordinator/state_machine/privacy.h"
#include "core/proto_time.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

using std::chrono::nanoseconds;

constexpr std::chrono::seconds kRecordTimeout(5);
// A debugger that reads the symbols of LibTorch takes this long.
constexpr std::chrono::seconds kStackTimeout(20);
constexpr std::chrono::minutes kLongestTimeout(1);

template <typename Request>
nanoseconds TimeoutOf(const Request& request, nanoseconds otherwise) {
  return request.has_timeout() ? std::clamp<nanoseconds>(FromProto(request.timeout()),
                                                         SteadyNanos(0), kLongestTimeout)
                               : otherwise;
}

bool HasEnded(const v1::RankStatus& rank) {
  return rank.state() == v1::RANK_STATE_EXITED || rank.state() == v1::RANK_STATE_LOST;
}

std::string EndOf(const v1::RankStatus& rank) {
  return rank.end().empty() ? "it has ended" : "it has ended: " + rank.end();
}

}  // namespace

void Inquiries::Collect(uint64_t call_id, const v1::GetFlightRecordsRequest& request) {
  v1::OpenSessionResponse question;
  v1::CollectFlightRecords& collect = *question.mutable_collect_flight_records();
  collect.set_request(call_id);
  collect.set_most_operations(request.most_operations());
  collect.set_all_ranks(request.all_ranks());
  Begin(call_id, Kind::kFlightRecord, request.job_id(), TimeoutOf(request, kRecordTimeout), {},
        question);
}

void Inquiries::Collect(uint64_t call_id, const v1::GetStacksRequest& request) {
  v1::OpenSessionResponse question;
  v1::CollectStacks& collect = *question.mutable_collect_stacks();
  collect.set_request(call_id);
  *collect.mutable_ranks() = request.ranks();
  collect.set_native(request.native());
  const nanoseconds timeout = TimeoutOf(request, kStackTimeout);
  *collect.mutable_timeout() = ToProtoDuration(timeout);
  Begin(call_id, Kind::kStack, request.job_id(), timeout,
        {request.ranks().begin(), request.ranks().end()}, question);
}

void Inquiries::Begin(uint64_t call_id, Kind kind, const std::string& name, nanoseconds timeout,
                      const std::set<int>& ranks, const v1::OpenSessionResponse& question) {
  const auto job = LookupVisible(context_, jobs_, name);
  if (!job.ok()) {
    context_.Reply(call_id, job.status());
    return;
  }
  const v1::Job& view = (*job)->view;
  if (view.state() != v1::JOB_STATE_RUNNING && view.state() != v1::JOB_STATE_QUIESCING) {
    context_.Reply(
        call_id,
        absl::FailedPreconditionError(fmt::format(
            "job {} is {}: {}", view.job_id(), StateName(view.state()),
            kind == Kind::kStack
                ? "only ranks that run have a stack"
                : "only ranks that run have a flight record; what was dumped when a collective "
                  "failed is in 'meshrun logs'")));
    return;
  }
  if (!ranks.empty() && (*ranks.begin() < 0 || *ranks.rbegin() >= view.ranks_size())) {
    context_.Reply(call_id, absl::NotFoundError(fmt::format(
                                "job {} has no rank {}: its ranks are 0 to {}", view.job_id(),
                                *ranks.begin() < 0 ? *ranks.begin() : *ranks.rbegin(),
                                view.ranks_size() - 1)));
    return;
  }
  Inquiry& inquiry = inquiries_[call_id];
  inquiry.kind = kind;
  inquiry.job_id = view.job_id();
  inquiry.generation = view.generation();
  inquiry.timeout = timeout;
  inquiry.deadline = context_.now + timeout;
  for (const Member& member : (*job)->members) {
    Ask(call_id, inquiry, **job, member, ranks, question);
  }
  EndIfComplete(call_id);
}

void Inquiries::Ask(uint64_t call_id, Inquiry& inquiry, const Job& job, const Member& member,
                    const std::set<int>& ranks, const v1::OpenSessionResponse& question) {
  const Node* const node = nodes_.Find(member.node_id);
  const bool is_here = !member.ended && node != nullptr && node->session_id != 0;
  bool asked = false;
  for (int rank = member.first_rank; rank < member.first_rank + member.rank_count; ++rank) {
    if (!ranks.empty() && !ranks.contains(rank)) continue;
    const v1::RankStatus& status = job.view.ranks(rank);
    if (HasEnded(status)) {
      Refuse(call_id, inquiry, rank, EndOf(status));
    } else if (!is_here) {
      Refuse(call_id, inquiry, rank,
             fmt::format("its host {} is not connected", status.node_name()));
    } else {
      inquiry.missing.insert(rank);
      asked = true;
    }
  }
  if (!asked) return;
  v1::OpenSessionResponse message = MessageTo(*node, job.id(), job.view.generation());
  message.MergeFrom(question);
  context_.Send(node->session_id, std::move(message));
}

const Inquiries::Inquiry* Inquiries::Take(uint64_t call_id, Kind kind, uint64_t request,
                                          const v1::Fence& fence, int rank) {
  const auto found = inquiries_.find(request);
  // A rank's host says where it stands; the rank itself sends its flight record.
  const Job* const job = jobs_.Find(fence.job_id());
  const bool is_its_hosts =
      kind != Kind::kStack || (job != nullptr && job->view.generation() == fence.generation() &&
                               job->IsOn(rank, fence.node_id()));
  if (found == inquiries_.end() || found->second.kind != kind || !is_its_hosts ||
      found->second.job_id != fence.job_id() || found->second.generation != fence.generation() ||
      found->second.missing.erase(rank) == 0) {
    context_.Reply(call_id, absl::NotFoundError(fmt::format(
                                "the client that asked for the {} of rank {} has gone",
                                kind == Kind::kStack ? "stack" : "flight record", rank)));
    return nullptr;
  }
  return &found->second;
}

void Inquiries::Upload(uint64_t call_id, const v1::UploadFlightRecordRequest& request) {
  const Inquiry* const inquiry = Take(call_id, Kind::kFlightRecord, request.request(),
                                      request.fence(), request.record().rank());
  if (inquiry == nullptr) return;
  Answer(request.request(), *inquiry, request.record());
  context_.Reply(call_id, v1::UploadFlightRecordResponse());
  EndIfComplete(request.request());
}

void Inquiries::Upload(uint64_t call_id, const v1::UploadStackRequest& request) {
  const Inquiry* const inquiry =
      Take(call_id, Kind::kStack, request.request(), request.fence(), request.stack().rank());
  if (inquiry == nullptr) return;
  Answer(request.request(), *inquiry, request.stack());
  context_.Reply(call_id, v1::UploadStackResponse());
  EndIfComplete(request.request());
}

void Inquiries::CancelCall(uint64_t call_id) {
  if (inquiries_.erase(call_id) == 0) return;
  context_.Reply(call_id, absl::CancelledError("the reader went away"));
}

void Inquiries::Answer(uint64_t call_id, const Inquiry& inquiry, v1::FlightRecord record) {
  auto item = std::make_shared<v1::GetFlightRecordsResponse>();
  *item->mutable_record() = std::move(record);
  item->set_generation(inquiry.generation);
  item->set_now_nanos(context_.now.count());
  *item->mutable_now() = ToProtoTimestamp(context_.wall);
  context_.Add(StreamItem{call_id, std::move(item)});
}

void Inquiries::Answer(uint64_t call_id, const Inquiry& inquiry, v1::RankStack stack) {
  auto item = std::make_shared<v1::GetStacksResponse>();
  *item->mutable_stack() = std::move(stack);
  item->set_generation(inquiry.generation);
  context_.Add(StreamItem{call_id, std::move(item)});
}

void Inquiries::Refuse(uint64_t call_id, const Inquiry& inquiry, int rank, std::string why) {
  if (inquiry.kind == Kind::kStack) {
    v1::RankStack stack;
    stack.set_rank(rank);
    stack.set_error(std::move(why));
    Answer(call_id, inquiry, std::move(stack));
    return;
  }
  v1::FlightRecord record;
  record.set_rank(rank);
  record.set_error(std::move(why));
  Answer(call_id, inquiry, std::move(record));
}

void Inquiries::EndIfComplete(uint64_t call_id) {
  const auto found = inquiries_.find(call_id);
  if (found == inquiries_.end() || !found->second.missing.empty()) return;
  inquiries_.erase(found);
  context_.Add(ReplyToCall{call_id, absl::OkStatus(), nullptr});
}

void Inquiries::ExpireDue() {
  for (auto it = inquiries_.begin(); it != inquiries_.end();) {
    const auto [call_id, inquiry] = *it;
    if (inquiry.deadline > context_.now) {
      ++it;
      continue;
    }
    for (const int rank : inquiry.missing) {
      Refuse(call_id, inquiry, rank, WhySilent(inquiry, rank));
    }
    it = inquiries_.erase(it);
    context_.Add(ReplyToCall{call_id, absl::OkStatus(), nullptr});
  }
}

std::string Inquiries::WhySilent(const Inquiry& inquiry, int rank) const {
  const Job* const job = jobs_.Find(inquiry.job_id);
  if (job == nullptr || job->view.generation() != inquiry.generation) {
    return fmt::format("it has ended with generation {} of the job", inquiry.generation);
  }
  const v1::RankStatus& status = job->view.ranks(rank);
  if (HasEnded(status)) return EndOf(status);
  return fmt::format("no answer within {}: {}", FormatDuration(inquiry.timeout),
                     inquiry.kind == Kind::kStack
                         ? "its host is busy, or its worker is older than 'meshrun stack'"
                         : "it is stopped, or has no process group on ucx");
}

std::optional<SteadyNanos> Inquiries::NextDeadline() const {
  std::optional<SteadyNanos> next;
  for (const auto& [call_id, inquiry] : inquiries_) {
    if (!next || inquiry.deadline < *next) next = inquiry.deadline;
  }
  return next;
}

}  // namespace meshrun::coordinator
