// What people ask of the ranks of a job that runs: flight records, which ranks upload themselves,
// and stacks, which their hosts upload. Every rank that is asked for answers once; each answer is
// passed on to the call, and an error takes the place of an answer that does not come in time.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/nodes.h"
#include "meshrun/v1/flight_record.pb.h"
#include "meshrun/v1/stack.pb.h"

namespace meshrun::coordinator {

class Inquiries {
 public:
  Inquiries(Context& context, NodeTable& nodes, JobTable& jobs)
      : context_(context), nodes_(nodes), jobs_(jobs) {}

  void Collect(uint64_t call_id, const v1::GetFlightRecordsRequest& request);
  void Collect(uint64_t call_id, const v1::GetStacksRequest& request);
  void Upload(uint64_t call_id, const v1::UploadFlightRecordRequest& request);
  void Upload(uint64_t call_id, const v1::UploadStackRequest& request);
  void CancelCall(uint64_t call_id);

  void ExpireDue();
  std::optional<SteadyNanos> NextDeadline() const;

 private:
  enum class Kind { kFlightRecord, kStack };
  struct Inquiry {
    Kind kind = Kind::kFlightRecord;
    std::string job_id;
    uint64_t generation = 0;
    std::set<int> missing;
    SteadyNanos deadline{0};
    std::chrono::nanoseconds timeout{0};
  };

  // `question`: what hosts are sent. `ranks`: those that are asked for; empty: all.
  void Begin(uint64_t call_id, Kind kind, const std::string& job, std::chrono::nanoseconds timeout,
             const std::set<int>& ranks, const v1::OpenSessionResponse& question);
  void Ask(uint64_t call_id, Inquiry& inquiry, const Job& job, const Member& member,
           const std::set<int>& ranks, const v1::OpenSessionResponse& question);
  // Replies to `call_id`, and returns the inquiry that waits for this rank; null where none does.
  const Inquiry* Take(uint64_t call_id, Kind kind, uint64_t request, const v1::Fence& fence,
                      int rank);
  void Answer(uint64_t call_id, const Inquiry& inquiry, v1::FlightRecord record);
  void Answer(uint64_t call_id, const Inquiry& inquiry, v1::RankStack stack);
  void Refuse(uint64_t call_id, const Inquiry& inquiry, int rank, std::string why);
  void EndIfComplete(uint64_t call_id);
  // Why this rank has not answered in time.
  std::string WhySilent(const Inquiry& inquiry, int rank) const;

  Context& context_;
  NodeTable& nodes_;
  JobTable& jobs_;
  // By call_id, which is also the number of the request.
  std::map<uint64_t, Inquiry> inquiries_;
};

}  // namespace meshrun::coordinator
