// The daemon of an agent, as a test plays it: its two services in memory, over a real Unix socket.
#pragma once

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/rpc/channel.h"
#include "meshrun/v1/agent_service.grpc.pb.h"
#include "meshrun/v1/store_service.grpc.pb.h"

namespace meshrun::agent {

inline constexpr char kToken[] = "secret";

inline grpc::Status Unauthenticated() { return {grpc::StatusCode::UNAUTHENTICATED, "wrong token"}; }

// A job of four ranks in generation 2, of which the agent is rank 3, and a store of one map. The
// next answers of the store may be replaced by errors. Generation 3 is over before anybody can
// register there; in generation 4 the agent is rank 1.
class FakeDaemon : public v1::AgentService::Service, public v1::StoreService::Service {
 public:
  // Addresses of each node, which has two ranks; set before a rank connects.
  std::map<std::string, std::vector<std::string>> addresses;
  // What the next calls of the store get instead of an answer, after they were carried out.
  void FailNext(int calls) { failures_ = calls; }
  // How many of them have not come yet.
  int failures_left() { return failures_; }
  void StopGeneration(const std::string& reason) {
    std::lock_guard lock(mu_);
    stop_reason_ = reason;
    changed_.notify_all();
  }
  void Tell(const v1::PeerNews& news) {
    std::lock_guard lock(mu_);
    news_.push_back(news);
    changed_.notify_all();
  }
  std::optional<v1::WaitReport> waiting() {
    std::lock_guard lock(mu_);
    return waiting_;
  }
  // As a daemon that is started anew.
  void ForgetWait() {
    std::lock_guard lock(mu_);
    waiting_.reset();
  }
  void AskForFlightRecord(uint64_t request) {
    std::lock_guard lock(mu_);
    asked_ = request;
    changed_.notify_all();
  }
  // Whether a listener has been told.
  bool has_asked() {
    std::lock_guard lock(mu_);
    return asked_ == 0;
  }
  std::vector<v1::UploadFlightRecordRequest> uploads() {
    std::lock_guard lock(mu_);
    return uploads_;
  }
  void EndWatches() {
    std::lock_guard lock(mu_);
    ending_ = true;
    changed_.notify_all();
  }

  // Another generation has begun.
  void Begin(uint64_t generation) {
    std::lock_guard lock(mu_);
    current_ = generation;
    changed_.notify_all();
  }
  bool in_process(uint64_t generation) {
    std::lock_guard lock(mu_);
    return in_process_[generation];
  }
  // The step that ReportQuiesced named; -1: none.
  int64_t quiesced() {
    std::lock_guard lock(mu_);
    return quiesced_;
  }
  std::set<int> finished() {
    std::lock_guard lock(mu_);
    return finished_;
  }

  std::vector<std::string> request_ids() {
    std::lock_guard lock(mu_);
    return request_ids_;
  }
  // Somebody has asked for a key that never comes.
  bool is_waited_for() {
    std::lock_guard lock(mu_);
    return is_waited_for_;
  }
  v1::EnterBarrierRequest last_barrier() {
    std::lock_guard lock(mu_);
    return barrier_;
  }
  v1::Progress last_progress() {
    std::lock_guard lock(mu_);
    return progress_;
  }

  grpc::Status RegisterRank(grpc::ServerContext*, const v1::RegisterRankRequest* request,
                            v1::RegisterRankResponse* response) override {
    if (request->token() != kToken) return Unauthenticated();
    if (request->rank() > 3) return {grpc::StatusCode::NOT_FOUND, "no such rank"};
    {
      std::lock_guard lock(mu_);
      if (request->fence().generation() == 3) {
        current_ = 4;
        return {grpc::StatusCode::FAILED_PRECONDITION, "generation 3 is over"};
      }
      in_process_[request->fence().generation()] = request->in_process();
    }
    response->mutable_assignment()->set_rank(request->rank());
    response->mutable_assignment()->set_local_rank(1);
    response->mutable_assignment()->set_node_rank(1);
    response->set_world_size(4);
    response->set_local_world_size(2);
    response->set_node_count(2);
    response->set_node_name("b");
    response->set_master_addr("10.0.0.1");
    response->set_master_port(20007);
    response->add_mesh()->set_name("dp");
    response->mutable_mesh(0)->set_size(4);
    return grpc::Status::OK;
  }
  grpc::Status ReportProgress(grpc::ServerContext*, const v1::ReportProgressRequest* request,
                              v1::ReportProgressResponse*) override {
    if (request->token() != kToken) return Unauthenticated();
    std::lock_guard lock(mu_);
    progress_ = request->progress();
    return grpc::Status::OK;
  }
  grpc::Status ReportWait(grpc::ServerContext*, const v1::ReportWaitRequest* request,
                          v1::ReportWaitResponse*) override {
    if (request->token() != kToken) return Unauthenticated();
    std::lock_guard lock(mu_);
    waiting_ = request->report();
    return grpc::Status::OK;
  }
  grpc::Status UploadFlightRecord(grpc::ServerContext*,
                                  const v1::UploadFlightRecordRequest* request,
                                  v1::UploadFlightRecordResponse*) override {
    if (request->token() != kToken) return Unauthenticated();
    std::lock_guard lock(mu_);
    uploads_.push_back(*request);
    return grpc::Status::OK;
  }
  grpc::Status WithdrawWait(grpc::ServerContext*, const v1::WithdrawWaitRequest* request,
                            v1::WithdrawWaitResponse*) override {
    if (request->token() != kToken) return Unauthenticated();
    std::lock_guard lock(mu_);
    if (waiting_ && waiting_->rank() == request->rank()) waiting_.reset();
    return grpc::Status::OK;
  }
  grpc::Status WatchGeneration(grpc::ServerContext* context,
                               const v1::WatchGenerationRequest* request,
                               grpc::ServerWriter<v1::WatchGenerationResponse>* writer) override {
    if (request->token() != kToken) return Unauthenticated();
    std::unique_lock lock(mu_);
    size_t told = 0;
    while (stop_reason_.empty() && !ending_ && !context->IsCancelled()) {
      if (request->fence().generation() < current_) {
        v1::WatchGenerationResponse event;
        event.mutable_new_generation()->mutable_fence()->set_generation(current_);
        event.mutable_new_generation()->mutable_assignment()->set_rank(current_ == 4 ? 1 : 2);
        writer->Write(event);
        return grpc::Status::OK;
      }
      for (; told < news_.size(); ++told) {
        v1::WatchGenerationResponse event;
        *event.mutable_news() = news_[told];
        writer->Write(event);
      }
      if (asked_ != 0) {
        v1::WatchGenerationResponse event;
        event.set_flight_record_request(std::exchange(asked_, 0));
        writer->Write(event);
      }
      changed_.wait_for(lock, std::chrono::milliseconds(10));
    }
    if (!stop_reason_.empty()) {
      v1::WatchGenerationResponse event;
      event.set_stopping(true);
      event.set_reason(stop_reason_);
      writer->Write(event);
    }
    return grpc::Status::OK;
  }

  grpc::Status ReportQuiesced(grpc::ServerContext*, const v1::ReportQuiescedRequest* request,
                              v1::ReportQuiescedResponse*) override {
    std::lock_guard lock(mu_);
    quiesced_ = request->step();
    return grpc::Status::OK;
  }
  grpc::Status ReportFinished(grpc::ServerContext*, const v1::ReportFinishedRequest* request,
                              v1::ReportFinishedResponse*) override {
    std::lock_guard lock(mu_);
    // A coordinator that is started again.
    if (finish_calls_++ == 0) return {grpc::StatusCode::UNAVAILABLE, "not yet"};
    if (request->fence().generation() < current_) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "generation 2 has failed"};
    }
    finished_.insert(request->rank());
    return grpc::Status::OK;
  }
  grpc::Status GetFinished(grpc::ServerContext*, const v1::GetFinishedRequest*,
                           v1::GetFinishedResponse* response) override {
    std::lock_guard lock(mu_);
    response->set_finished(!finished_.empty());
    return grpc::Status::OK;
  }
  grpc::Status CommitCheckpoint(grpc::ServerContext*, const v1::CommitCheckpointRequest* request,
                                v1::CommitCheckpointResponse*) override {
    if (request->has_expected_step() != commit_.has_value() ||
        (commit_ && commit_->step() != request->expected_step())) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "another one is the newest"};
    }
    commit_ = request->commit();
    return grpc::Status::OK;
  }
  grpc::Status GetCheckpoint(grpc::ServerContext*, const v1::GetCheckpointRequest*,
                             v1::GetCheckpointResponse* response) override {
    if (!commit_) return {grpc::StatusCode::NOT_FOUND, "none"};
    *response->mutable_commit() = *commit_;
    return grpc::Status::OK;
  }

  grpc::Status SetValues(grpc::ServerContext* context, const v1::SetValuesRequest* request,
                         v1::SetValuesResponse*) override {
    return Change(context, request->request_id(), [&] {
      for (const auto& [key, value] : request->values()) values_[key] = value;
    });
  }
  grpc::Status GetWorld(grpc::ServerContext* context, const v1::GetWorldRequest*,
                        v1::GetWorldResponse* response) override {
    if (const auto status = Check(context); !status.ok()) return status;
    for (const auto& [node, list] : addresses) {
      for (int i = 0; i < 2; ++i) {
        v1::RankAssignment& rank = *response->mutable_world()->add_ranks();
        rank.set_rank(response->world().ranks_size() - 1);
        rank.set_node_rank(rank.rank() / 2);
        rank.set_node_id(node);
      }
      v1::NodeAddresses& of = *response->mutable_world()->add_addresses();
      of.set_node_id(node);
      of.mutable_addresses()->Add(list.begin(), list.end());
    }
    return grpc::Status::OK;
  }
  grpc::Status GetValues(grpc::ServerContext* context, const v1::GetValuesRequest* request,
                         v1::GetValuesResponse* response) override {
    if (const auto status = Check(context); !status.ok()) return status;
    std::unique_lock lock(mu_);
    while (request->keys(0) == "never" && !context->IsCancelled()) {
      is_waited_for_ = true;
      changed_.wait_for(lock, std::chrono::milliseconds(10));
    }
    for (const std::string& key : request->keys()) {
      if (!values_.contains(key)) {
        const bool waits = request->timeout().seconds() > 0 || request->timeout().nanos() > 0;
        return {waits ? grpc::StatusCode::DEADLINE_EXCEEDED : grpc::StatusCode::NOT_FOUND,
                "key " + key + " is missing"};
      }
      response->add_values(values_[key]);
    }
    return grpc::Status::OK;
  }
  grpc::Status AddValue(grpc::ServerContext* context, const v1::AddValueRequest* request,
                        v1::AddValueResponse* response) override {
    return Change(
        context, request->request_id(),
        [&] {
          const int64_t sum =
              (values_.contains(request->key()) ? std::stol(values_[request->key()]) : 0) +
              request->amount();
          values_[request->key()] = std::to_string(sum);
        },
        [&] { response->set_value(std::stol(values_[request->key()])); });
  }
  grpc::Status CompareSetValue(grpc::ServerContext* context,
                               const v1::CompareSetValueRequest* request,
                               v1::CompareSetValueResponse* response) override {
    return Change(context, request->request_id(), [&] {
      const auto it = values_.find(request->key());
      if (it == values_.end() ? request->expected().empty() : it->second == request->expected()) {
        values_[request->key()] = request->desired();
      }
      if (values_.contains(request->key())) response->set_value(values_[request->key()]);
    });
  }
  grpc::Status CountKeys(grpc::ServerContext* context, const v1::CountKeysRequest* request,
                         v1::CountKeysResponse* response) override {
    if (const auto status = Check(context); !status.ok()) return status;
    std::lock_guard lock(mu_);
    response->set_total(values_.size());
    for (const std::string& key : request->keys())
      response->set_existing(response->existing() + values_.count(key));
    return grpc::Status::OK;
  }
  grpc::Status DeleteKey(grpc::ServerContext* context, const v1::DeleteKeyRequest* request,
                         v1::DeleteKeyResponse* response) override {
    return Change(context, request->request_id(),
                  [&] { response->set_deleted(values_.erase(request->key()) > 0); });
  }
  // Waits until it is cancelled.
  grpc::Status EnterBarrier(grpc::ServerContext* context, const v1::EnterBarrierRequest* request,
                            v1::EnterBarrierResponse*) override {
    if (const auto status = Check(context); !status.ok()) return status;
    std::unique_lock lock(mu_);
    barrier_ = *request;
    changed_.notify_all();
    while (request->name() == "never" && !context->IsCancelled()) {
      changed_.wait_for(lock, std::chrono::milliseconds(10));
    }
    if (request->name() == "broken") return {grpc::StatusCode::ABORTED, "rank 2 has exited"};
    return grpc::Status::OK;
  }

 private:
  grpc::Status Check(grpc::ServerContext* context) {
    const auto token = context->client_metadata().find("meshrun-token");
    if (token == context->client_metadata().end() || token->second != kToken)
      return Unauthenticated();
    if (failures_ > 0) {
      --failures_;
      return {grpc::StatusCode::UNAVAILABLE, "the coordinator is away"};
    }
    return grpc::Status::OK;
  }
  // Carries out what was not carried out yet, and then perhaps fails to answer.
  template <typename Carry, typename Answer = void (*)()>
  grpc::Status Change(
      grpc::ServerContext* context, const std::string& request_id, Carry carry,
      Answer answer = [] {}) {
    {
      std::lock_guard lock(mu_);
      if (std::find(request_ids_.begin(), request_ids_.end(), request_id) == request_ids_.end())
        carry();
      request_ids_.push_back(request_id);
      answer();
    }
    return Check(context);
  }

  std::atomic<int> failures_{0};
  std::mutex mu_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::vector<std::string> request_ids_;
  v1::EnterBarrierRequest barrier_;
  bool is_waited_for_ = false;
  v1::Progress progress_;
  std::vector<v1::PeerNews> news_;
  std::optional<v1::WaitReport> waiting_;
  uint64_t asked_ = 0;
  std::vector<v1::UploadFlightRecordRequest> uploads_;
  std::string stop_reason_;
  bool ending_ = false;
  uint64_t current_ = 2;
  std::map<uint64_t, bool> in_process_;
  int64_t quiesced_ = -1;
  int finish_calls_ = 0;
  std::set<int> finished_;
  std::optional<v1::CheckpointCommit> commit_;
};

// Null where it cannot listen.
inline std::unique_ptr<grpc::Server> Serve(FakeDaemon& daemon, const std::string& address) {
  grpc::ServerBuilder builder;
  rpc::ConfigureServer(builder);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(static_cast<v1::AgentService::Service*>(&daemon));
  builder.RegisterService(static_cast<v1::StoreService::Service*>(&daemon));
  return builder.BuildAndStart();
}

}  // namespace meshrun::agent
