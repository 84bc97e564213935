#include "worker/agent_server/agent_service.h"

#include <fmt/format.h>

#include <deque>
#include <string>
#include <utility>

#include "core/log.h"
#include "core/os/boot_time.h"
#include "core/rpc/bounds.h"
#include "core/rpc/status_conversion.h"
#include "core/status.h"

namespace meshrun::worker {
namespace {

// The most events that wait for a rank. A rank so far behind is ill: its watch ends, and the next
// one begins with the state as it is then.
constexpr size_t kMaxQueued = 1024;

// INVALID_ARGUMENT: the request is beyond its bounds; else as Generations::Authenticate.
template <typename Request>
absl::StatusOr<Generation*> Admit(Generations& generations, const Request& request, int rank) {
  MESHRUN_RETURN_IF_ERROR(rpc::CheckBounds(request));
  return generations.Authenticate(request.fence(), request.token(), rank);
}

// One WatchGeneration call. Runs on the loop, except gRPC's reactions.
class Watch : public grpc::ServerWriteReactor<v1::WatchGenerationResponse>,
              public GenerationWatcher {
 public:
  Watch(EventLoop& loop, Generations& generations, v1::WatchGenerationRequest request)
      : loop_(loop), generations_(generations), request_(std::move(request)) {
    loop_.Post([this] { Begin(); });
  }

  void OnStopping(const std::string& reason) override {
    v1::WatchGenerationResponse event;
    event.set_stopping(true);
    event.set_reason(reason);
    Write(std::move(event));
  }
  void OnNews(const v1::PeerNews& news) override {
    v1::WatchGenerationResponse event;
    *event.mutable_news() = news;
    Write(std::move(event));
  }
  void OnFlightRecordWanted(uint64_t request, uint32_t most_operations) override {
    v1::WatchGenerationResponse event;
    event.set_flight_record_request(request);
    event.set_flight_record_operations(most_operations);
    Write(std::move(event));
  }
  void OnQuiesce(const v1::Quiesce& quiesce) override {
    v1::WatchGenerationResponse event;
    *event.mutable_quiesce() = quiesce;
    Write(std::move(event));
  }
  void OnNewGeneration(const v1::RegisterRankResponse& place) override {
    v1::WatchGenerationResponse event;
    *event.mutable_new_generation() = place;
    Write(std::move(event));
    Complete(grpc::Status::OK);
  }
  void OnEnded() override { Complete(grpc::Status::OK); }

  void OnWriteDone(bool) override {
    loop_.Post([this] {
      queue_.pop_front();
      if (!queue_.empty()) {
        StartWrite(&queue_.front());
      } else if (completed_) {
        Complete(end_);
      }
    });
  }
  void OnCancel() override {
    loop_.Post(
        [this] { Complete(grpc::Status(grpc::StatusCode::CANCELLED, "the rank went away")); });
  }
  void OnDone() override {
    // After every task above.
    loop_.Post([this] {
      generations_.RemoveWatcher(this);
      delete this;
    });
  }

 private:
  absl::StatusOr<Generation*> Find() { return Admit(generations_, request_, request_.rank()); }
  void Begin() {
    if (const auto generation = Find(); generation.ok()) {
      (*generation)->AddWatcher(this, request_.rank());
    } else if (const auto place =
                   generations_.FindSuccessor(request_.fence(), request_.token(), request_.rank());
               place.ok()) {
      OnNewGeneration(*place);
    } else {
      Complete(rpc::ToGrpc(generation.status(), v1::ERROR_ORIGIN_WORKER));
    }
  }
  void Write(v1::WatchGenerationResponse event) {
    if (finished_ || completed_) return;
    if (queue_.size() >= kMaxQueued) {
      Complete(rpc::ToGrpc(absl::UnavailableError("the rank does not take its events"),
                           v1::ERROR_ORIGIN_WORKER));
      return;
    }
    queue_.push_back(std::move(event));
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }
  // After what is queued; a call that is cancelled fails its writes.
  void Complete(const grpc::Status& status) {
    if (finished_) return;
    completed_ = true;
    end_ = status;
    if (!queue_.empty()) return;
    finished_ = true;
    Finish(status);
  }

  EventLoop& loop_;
  Generations& generations_;
  const v1::WatchGenerationRequest request_;
  // The first is being written.
  std::deque<v1::WatchGenerationResponse> queue_;
  grpc::Status end_;
  bool completed_ = false;
  bool finished_ = false;
};

// One record on its way to the coordinator. Finish is called exactly once: on the loop with a
// refusal, or with the coordinator's answer, which a cancelled call gets too.
class FlightRecordUpload : public grpc::ServerUnaryReactor {
 public:
  FlightRecordUpload(EventLoop& loop, Generations& generations,
                     rpc::StubOf<v1::SessionService>& coordinator,
                     grpc::CallbackServerContext* context,
                     const v1::UploadFlightRecordRequest& request,
                     v1::UploadFlightRecordResponse* response)
      : generations_(generations),
        coordinator_(coordinator),
        request_(request),
        response_(response) {
    client_.set_deadline(context->deadline());
    loop.Post([this] { Forward(); });
  }

  void OnCancel() override { client_.TryCancel(); }
  void OnDone() override { delete this; }

 private:
  void Forward() {
    const auto found = Admit(generations_, request_, request_.record().rank());
    if (!found.ok()) {
      Finish(rpc::ToGrpc(found.status(), v1::ERROR_ORIGIN_WORKER));
      return;
    }
    if ((request_.request() & Generations::kDumpRequest) != 0) {
      generations_.WriteFlightRecord(**found, request_.record());
      Finish(grpc::Status::OK);
      return;
    }
    request_.clear_token();
    generations_.AddTimes(**found, request_.mutable_record());
    const auto stub = coordinator_.Get();
    stub->async()->UploadFlightRecord(&client_, &request_, response_,
                                      [this, stub](const grpc::Status& status) {
                                        coordinator_.OnEnd(rpc::FromGrpc(status), stub);
                                        Finish(status);
                                      });
  }

  Generations& generations_;
  rpc::StubOf<v1::SessionService>& coordinator_;
  v1::UploadFlightRecordRequest request_;
  v1::UploadFlightRecordResponse* const response_;
  grpc::ClientContext client_;
};

}  // namespace

grpc::ServerUnaryReactor* AgentService::RegisterRank(grpc::CallbackServerContext* context,
                                                     const v1::RegisterRankRequest* request,
                                                     v1::RegisterRankResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  loop_.Post([this, reactor, request, response] {
    const auto found = Admit(generations_, *request, request->rank());
    if (!found.ok()) {
      reactor->Finish(rpc::ToGrpc(found.status(), v1::ERROR_ORIGIN_WORKER));
      return;
    }
    *response = (*found)->PlaceOf(request->rank(), generations_.facts().node_name);
    log::Debug(
        "a rank has registered",
        {{"job", request->fence().job_id()}, {"rank", request->rank()}, {"pid", request->pid()}});
    generations_.Join(**found, request->rank(), request->in_process(),
                      [reactor] { reactor->Finish(grpc::Status::OK); });
  });
  return reactor;
}

grpc::ServerUnaryReactor* AgentService::ReportProgress(grpc::CallbackServerContext* context,
                                                       const v1::ReportProgressRequest* request,
                                                       v1::ReportProgressResponse*) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  loop_.Post([this, reactor, request] {
    const auto found = Admit(generations_, *request, request->rank());
    absl::Status status = found.status();
    if (request->progress().has_step() && request->progress().step() < 0) {
      status.Update(absl::InvalidArgumentError(
          fmt::format("step {} is negative: steps count from 0", request->progress().step())));
    }
    if (status.ok()) {
      v1::Progress progress = request->progress();
      // Older news of the rank, which came by datagram, may be passed on after it.
      if (progress.has_step()) progress.set_step_at_nanos(os::BootTimeNow().count());
      generations_.ReportProgress(**found, request->rank(), progress);
    }
    reactor->Finish(rpc::ToGrpc(status, v1::ERROR_ORIGIN_WORKER));
  });
  return reactor;
}

grpc::ServerUnaryReactor* AgentService::ReportWait(grpc::CallbackServerContext* context,
                                                   const v1::ReportWaitRequest* request,
                                                   v1::ReportWaitResponse*) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  loop_.Post([this, reactor, request] {
    const auto found = Admit(generations_, *request, request->report().rank());
    if (found.ok()) generations_.ReportWait(**found, request->report());
    reactor->Finish(rpc::ToGrpc(found.status(), v1::ERROR_ORIGIN_WORKER));
  });
  return reactor;
}

grpc::ServerUnaryReactor* AgentService::WithdrawWait(grpc::CallbackServerContext* context,
                                                     const v1::WithdrawWaitRequest* request,
                                                     v1::WithdrawWaitResponse*) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  loop_.Post([this, reactor, request] {
    const auto found = Admit(generations_, *request, request->rank());
    if (found.ok()) generations_.WithdrawWait(**found, request->rank());
    reactor->Finish(rpc::ToGrpc(found.status(), v1::ERROR_ORIGIN_WORKER));
  });
  return reactor;
}

grpc::ServerUnaryReactor* AgentService::ReportQuiesced(grpc::CallbackServerContext* context,
                                                       const v1::ReportQuiescedRequest* request,
                                                       v1::ReportQuiescedResponse*) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  loop_.Post([this, reactor, request] {
    const auto found = Admit(generations_, *request, request->rank());
    if (!found.ok()) {
      reactor->Finish(rpc::ToGrpc(found.status(), v1::ERROR_ORIGIN_WORKER));
      return;
    }
    generations_.ReportQuiesced(**found, request->rank(), request->step(),
                                [reactor] { reactor->Finish(grpc::Status::OK); });
  });
  return reactor;
}

grpc::ServerUnaryReactor* AgentService::UploadFlightRecord(
    grpc::CallbackServerContext* context, const v1::UploadFlightRecordRequest* request,
    v1::UploadFlightRecordResponse* response) {
  v1::UploadFlightRecordRequest own = *request;
  own.mutable_fence()->set_node_id(node_id_);
  own.mutable_fence()->set_incarnation(incarnation_);
  return new FlightRecordUpload(loop_, generations_, coordinator_, context, own, response);
}

grpc::ServerWriteReactor<v1::WatchGenerationResponse>* AgentService::WatchGeneration(
    grpc::CallbackServerContext*, const v1::WatchGenerationRequest* request) {
  return new Watch(loop_, generations_, *request);
}

}  // namespace meshrun::worker
