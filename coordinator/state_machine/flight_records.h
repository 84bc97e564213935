// Flight records that people ask for. Every rank of a running generation is asked once; each answer
// is passed on to the call, and an error takes the place of an answer that does not come in time.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/nodes.h"
#include "meshrun/v1/flight_record.pb.h"

namespace meshrun::coordinator {

class FlightRecords {
 public:
  FlightRecords(Context& context, NodeTable& nodes, JobTable& jobs)
      : context_(context), nodes_(nodes), jobs_(jobs) {}

  void Collect(uint64_t call_id, const v1::GetFlightRecordsRequest& request);
  void Upload(uint64_t call_id, const v1::UploadFlightRecordRequest& request);
  void CancelCall(uint64_t call_id);

  void ExpireDue();
  std::optional<SteadyNanos> NextDeadline() const;

 private:
  struct Collection {
    std::string job_id;
    uint64_t generation = 0;
    std::set<int> missing;
    SteadyNanos deadline{0};
    std::chrono::nanoseconds timeout{0};
  };

  void Ask(const Job& job, const Member& member, uint64_t call_id, Collection& collection);
  void Answer(uint64_t call_id, const Collection& collection, v1::FlightRecord record);
  void Refuse(uint64_t call_id, const Collection& collection, int rank, std::string why);
  void EndIfComplete(uint64_t call_id);

  Context& context_;
  NodeTable& nodes_;
  JobTable& jobs_;
  // By call_id, which is also the number of the request.
  std::map<uint64_t, Collection> collections_;
};

}  // namespace meshrun::coordinator
