#include "worker/agent_server/agent_service.h"

#include <string>

#include "core/log.h"
#include "core/rpc/status_conversion.h"

namespace meshrun::worker {
namespace {

// One WatchGeneration call: at most one message, and the end. On the loop but for the reactions.
class Watch : public grpc::ServerWriteReactor<v1::WatchGenerationResponse>,
              public GenerationWatcher {
 public:
  Watch(EventLoop& loop, Generations& generations, v1::WatchGenerationRequest request)
      : loop_(loop), generations_(generations), request_(std::move(request)) {
    loop_.Post([this] { Begin(); });
  }

  void OnStopping(const std::string& reason) override {
    if (finished_ || writing_) return;
    response_.set_stopping(true);
    response_.set_reason(reason);
    writing_ = true;
    StartWrite(&response_);
  }
  void OnEnded() override { Complete(grpc::Status::OK); }

  void OnWriteDone(bool) override {
    loop_.Post([this] {
      writing_ = false;
      if (completed_) Complete(end_);
    });
  }
  void OnCancel() override {
    loop_.Post(
        [this] { Complete(grpc::Status(grpc::StatusCode::CANCELLED, "the rank went away")); });
  }
  void OnDone() override {
    // After every task above.
    loop_.Post([this] {
      if (const auto generation = Find(); generation.ok()) (*generation)->RemoveWatcher(this);
      delete this;
    });
  }

 private:
  absl::StatusOr<Generation*> Find() {
    return generations_.Authenticate(request_.fence(), request_.token(), request_.rank());
  }
  void Begin() {
    if (const auto generation = Find(); generation.ok()) {
      (*generation)->AddWatcher(this);
    } else {
      Complete(rpc::ToGrpc(generation.status()));
    }
  }
  void Complete(const grpc::Status& status) {
    if (finished_) return;
    completed_ = true;
    end_ = status;
    if (writing_) return;
    finished_ = true;
    Finish(status);
  }

  EventLoop& loop_;
  Generations& generations_;
  const v1::WatchGenerationRequest request_;
  v1::WatchGenerationResponse response_;
  grpc::Status end_;
  bool writing_ = false;
  bool completed_ = false;
  bool finished_ = false;
};

}  // namespace

grpc::ServerUnaryReactor* AgentService::RegisterRank(grpc::CallbackServerContext* context,
                                                     const v1::RegisterRankRequest* request,
                                                     v1::RegisterRankResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  loop_.Post([this, reactor, request, response] {
    const auto found =
        generations_.Authenticate(request->fence(), request->token(), request->rank());
    if (!found.ok()) {
      reactor->Finish(rpc::ToGrpc(found.status()));
      return;
    }
    const v1::GenerationRecord& record = (*found)->record();
    *response->mutable_assignment() = *(*found)->FindRank(request->rank());
    response->set_world_size(static_cast<int32_t>(record.prepare().world_size()));
    response->set_local_world_size(record.prepare().ranks_size());
    response->set_node_count(static_cast<int32_t>(record.prepare().node_count()));
    *response->mutable_mesh() = record.prepare().mesh();
    response->set_master_addr(record.start().master_addr());
    response->set_master_port(record.start().master_port());
    response->set_node_name(generations_.facts().node_name);
    log::Debug(
        "a rank has registered",
        {{"job", record.fence().job_id()}, {"rank", request->rank()}, {"pid", request->pid()}});
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* AgentService::ReportProgress(grpc::CallbackServerContext* context,
                                                       const v1::ReportProgressRequest* request,
                                                       v1::ReportProgressResponse*) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  loop_.Post([this, reactor, request] {
    const auto found =
        generations_.Authenticate(request->fence(), request->token(), request->rank());
    if (found.ok()) (*found)->MergeRankProgress(request->rank(), request->progress());
    reactor->Finish(rpc::ToGrpc(found.status()));
  });
  return reactor;
}

grpc::ServerWriteReactor<v1::WatchGenerationResponse>* AgentService::WatchGeneration(
    grpc::CallbackServerContext*, const v1::WatchGenerationRequest* request) {
  return new Watch(loop_, generations_, *request);
}

}  // namespace meshrun::worker
