// Shared by the parts of the state machine while one event is stepped: the time, the actions
// collected so far, the list of events that people see.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/state_machine/actions.h"
#include "coordinator/state_machine/event_causes.h"
#include "coordinator/state_machine/held_time.h"
#include "coordinator/state_machine/tallies.h"
#include "core/clock.h"
#include "meshrun/v1/cluster_service.pb.h"
#include "meshrun/v1/policy.pb.h"
#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

class Context {
 public:
  // Times and random number of the event that is being stepped.
  SteadyNanos now{0};
  WallNanos wall{0};
  uint64_t random = 0;
  // User who made the call; empty if none.
  std::string user;
  // As of Caller.
  bool own_private_only = false;
  // Who asks for what is done now, for events; empty: nobody.
  std::string actor;

  uint64_t term = 0;
  std::string cluster_id;
  WallNanos started_at{0};
  SteadyNanos lease{0};
  SteadyNanos heartbeat{0};
  // With its defaults filled in.
  v1::Retention retention;
  v1::Quarantine quarantine;
  v1::Policy policy;
  HeldTimes held_times;
  Tallies tallies;
  // Submitters of jobs that are private, by job.
  std::unordered_map<std::string, std::string> private_jobs;
  // Nodes or queue changed: jobs may be placed at the end of the batch.
  bool placement_due = false;

  void Send(uint64_t session_id, v1::OpenSessionResponse message);
  void Close(uint64_t session_id, absl::Status status);
  void Reply(uint64_t call_id, absl::Status error);
  template <typename Response>
  void Reply(uint64_t call_id, Response response) {
    if (call_id == awaited_call_) outcome_ = absl::OkStatus();
    if (call_id == 0) return;
    actions_.list.push_back(ReplyToCall{call_id, absl::OkStatus(),
                                        std::make_shared<const Response>(std::move(response))});
  }
  // What becomes of this call, or of this session; absent: it has no answer yet.
  void Await(uint64_t call_id, uint64_t session_id) {
    outcome_.reset();
    awaited_call_ = call_id;
    awaited_session_ = session_id;
  }
  std::optional<absl::Status> TakeOutcome() { return std::exchange(outcome_, std::nullopt); }
  void Add(Action action) { actions_.list.push_back(std::move(action)); }
  void Warn(std::string text) { Add(WriteLog{true, std::move(text)}); }
  // A row of the durable state cannot be read. The first one is the event's `damage`.
  void Damaged(const v1::StateRow& row);

  // Appends to the list of events, which keeps the last kMaxEvents.
  void Record(std::string_view kind, std::string_view job_id, std::string_view node_id,
              std::string message);
  const std::deque<v1::ClusterEvent>& events() const { return events_; }
  // Events of one job, oldest first.
  std::vector<const v1::ClusterEvent*> EventsOf(const std::string& job_id) const;
  // Null when it is no longer kept.
  const v1::ClusterEvent* FindEvent(uint64_t sequence) const;
  void RestoreEvent(v1::ClusterEvent event);

  void Put(v1::StateTable table, std::string key, std::string value);
  void Put(v1::StateTable table, std::string key, const google::protobuf::Message& value) {
    Put(table, std::move(key), value.SerializeAsString());
  }
  void Erase(v1::StateTable table, std::string key);

  // Actions of the event; the rows stay until the end of the batch.
  Actions Take(bool end_of_batch);

 private:
  static constexpr size_t kMaxEvents = 10'000;

  Actions actions_;
  std::optional<absl::Status> outcome_;
  uint64_t awaited_call_ = 0;
  uint64_t awaited_session_ = 0;
  std::vector<v1::StateRow> rows_;
  void Keep(v1::ClusterEvent event);

  std::deque<v1::ClusterEvent> events_;
  // Sequences by job.
  std::unordered_map<std::string, std::deque<uint64_t>> of_job_;
  EventCauses causes_;
  uint64_t next_sequence_ = 1;
};

// For keys: 20 digits, so that text sorts as numbers do.
std::string KeyNumber(uint64_t number);
// "job_id/generation".
std::string GenerationKey(std::string_view job_id, uint64_t generation);
// Parts of a key that begins with "job_id/generation".
struct GenerationKeyParts {
  std::string job_id;
  uint64_t generation = 0;
  // After the next '/', if there is one.
  std::string rest;
};
std::optional<GenerationKeyParts> ParseGenerationKey(std::string_view key);

}  // namespace meshrun::coordinator
