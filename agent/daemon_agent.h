// The Agent over gRPC to the daemon's Unix socket.
//
//   daemon_agent.cc           connects, registers, ends
//   daemon_agent_store.cc     keys, barriers, unique ids, groups, the world's table
//   daemon_agent_reports.cc   this rank's progress, and what it waits for
//   daemon_agent_watch.cc     what the daemon tells while the generation runs
//   next_generation.cc        the end of the work or of the generation, and checkpoints
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "agent/agent.h"
#include "agent/calls.h"
#include "agent/environment.h"
#include "agent/report_socket.h"
#include "agent/totals.h"
#include "core/ids.h"
#include "core/mutex.h"
#include "meshrun/v1/agent_service.grpc.pb.h"
#include "meshrun/v1/store_service.grpc.pb.h"

namespace meshrun::agent {

class DaemonAgent : public Agent {
 public:
  // Registers. Errors: as Agent::Connect. Without `totals` the agent has its own.
  static absl::StatusOr<std::unique_ptr<Agent>> Connect(const AgentEnvironment& environment,
                                                        Milliseconds timeout,
                                                        bool in_process = false,
                                                        std::shared_ptr<Totals> totals = nullptr);
  ~DaemonAgent() override;

  const Assignment& assignment() const override { return assignment_; }
  absl::StatusOr<WorldTable> World(Milliseconds timeout) override;
  absl::Status Set(std::string_view key, std::string_view value) override;
  absl::Status MultiSet(const std::vector<std::string>& keys,
                        const std::vector<std::string>& values) override;
  absl::StatusOr<std::string> Get(std::string_view key, Milliseconds timeout) override;
  absl::StatusOr<std::vector<std::string>> MultiGet(const std::vector<std::string>& keys,
                                                    Milliseconds timeout,
                                                    const std::stop_token& stop) override;
  absl::Status Wait(const std::vector<std::string>& keys, Milliseconds timeout) override;
  absl::StatusOr<bool> Check(const std::vector<std::string>& keys) override;
  absl::StatusOr<int64_t> Add(std::string_view key, int64_t amount) override;
  absl::StatusOr<std::string> CompareSet(std::string_view key, std::string_view expected,
                                         std::string_view desired) override;
  absl::Status Append(std::string_view key, std::string_view value) override;
  absl::StatusOr<bool> Delete(std::string_view key) override;
  absl::StatusOr<int64_t> CountKeys() override;
  absl::Status Barrier(std::string_view name, const std::vector<int>& ranks,
                       Milliseconds timeout) override;
  absl::Status PublishUniqueId(std::string_view group, std::string_view unique_id) override;
  absl::StatusOr<std::string> AwaitUniqueId(std::string_view group, Milliseconds timeout) override;
  absl::Status RegisterGroup(std::string_view name, const std::vector<int>& ranks,
                             std::string_view backend) override;
  void Report(const Progress& progress) override;
  void SetCollectives(bool under_way, SteadyNanos at) override MESHRUN_EXCLUDES(mu_);
  void AddSent(uint64_t bytes) override { totals_->AddSent(bytes); }
  absl::Status ReportReliably(const Progress& progress) override;
  void OnStop(std::function<void(std::string)> on_stop) override;
  void Watch(GenerationListener listener) override;
  absl::Status ReportWait(const WaitReport& report, Milliseconds timeout) override;
  absl::Status WithdrawWait(Milliseconds timeout) override;
  absl::Status SetInProcess(bool can, Milliseconds timeout) override;
  absl::StatusOr<std::unique_ptr<Agent>> NextGeneration(Milliseconds timeout) override;
  absl::Status ReportFinished(Milliseconds timeout) override;
  absl::StatusOr<bool> HasFinished(Milliseconds timeout) override;
  absl::Status ReportQuiesced(int64_t step, Milliseconds timeout) override;
  absl::Status CommitCheckpoint(std::string_view name, int64_t step, std::string_view digest,
                                std::string_view temporary,
                                std::optional<int64_t> expected) override;
  absl::StatusOr<std::optional<Checkpoint>> CommittedCheckpoint(std::string_view name) override;

 private:
  DaemonAgent(const AgentEnvironment& environment, const std::shared_ptr<grpc::Channel>& channel,
              std::shared_ptr<Totals> totals);
  absl::Status Register(Milliseconds timeout, bool in_process);
  // Collectives that have not ended end with their world.
  void EndCollectives() MESHRUN_REQUIRES(mu_);
  // This process's place in the generation that follows, or why there is none.
  absl::StatusOr<AgentEnvironment> AwaitPlace(Milliseconds timeout);
  // Passes each event to `listener` until it returns false.
  void ReadEvents(const std::function<bool(const v1::WatchGenerationResponse&)>& listener);
  void Upload(uint64_t request, std::string flight_record);
  // Tells the daemon what this rank waits for now. One call at a time: the daemon hears the last
  // state last.
  absl::Status SendWait(Calls::Deadline deadline) MESHRUN_EXCLUDES(mu_);
  // To a daemon that may have been started anew and then does not know it.
  absl::Status ResendWait() MESHRUN_EXCLUDES(mu_);
  // A listener hears this verdict.
  void RememberVerdict(uint64_t number) MESHRUN_EXCLUDES(mu_);
  v1::Fence Fence() const;

  // Fills in the fence and, where the request has them, the rank, the token and a request id that
  // stays the same over retries.
  template <typename Request>
  Request NewRequest() {
    Request request;
    *request.mutable_fence() = Fence();
    if constexpr (requires { request.set_rank(0); }) request.set_rank(environment_.rank);
    if constexpr (requires { request.set_token(""); }) request.set_token(environment_.token);
    if constexpr (requires { request.set_request_id(""); })
      request.set_request_id(NewRequestId(ids_));
    return request;
  }
  template <typename Request, typename Response>
  using Method = grpc::Status (v1::StoreService::Stub::*)(grpc::ClientContext*, const Request&,
                                                          Response*);
  // For calls that answer at once.
  template <typename Request, typename Response>
  absl::Status Call(Method<Request, Response> method, const Request& request, Response* response);
  // For calls that wait: the request carries what is left of the timeout.
  template <typename Request, typename Response>
  absl::Status WaitingCall(Method<Request, Response> method, Request request, Milliseconds timeout,
                           Response* response, const std::stop_token& stop = {});

  const AgentEnvironment environment_;
  Assignment assignment_;
  // The process that connected. A forked child has no gRPC threads, so its destructor does nothing.
  const pid_t process_ = ::getpid();
  std::unique_ptr<v1::AgentService::Stub> agent_;
  std::unique_ptr<v1::StoreService::Stub> store_;
  ReportSocket reports_;
  // The agents of later generations of this process have them too.
  const std::shared_ptr<Totals> totals_;
  RandomIdSource ids_;
  Calls calls_;
  Mutex mu_;
  std::vector<std::thread> watchers_ MESHRUN_GUARDED_BY(mu_);
  CondVar wait_sent_;
  bool sending_wait_ MESHRUN_GUARDED_BY(mu_) = false;
  // Collectives of this generation are under way.
  bool collectives_ MESHRUN_GUARDED_BY(mu_) = false;
  std::optional<WaitReport> waiting_ MESHRUN_GUARDED_BY(mu_);
  std::set<uint64_t> seen_verdicts_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::agent
