#include "coordinator/services/job_service.h"

#include "coordinator/services/outgoing_stream.h"

namespace meshrun::coordinator {
namespace {

// Keeps the newest state alone when the reader is slow; the last one is always delivered.
class WatchCall
    : public OutgoingStream<grpc::ServerWriteReactor<v1::WatchJobResponse>, v1::WatchJobResponse>,
      public PendingCall {
 public:
  explicit WatchCall(Shell shell) : shell_(shell), call_id_(shell.loop.NewId()) {}

  grpc::ServerWriteReactor<v1::WatchJobResponse>* Begin(const v1::WatchJobRequest& request) {
    v1::StateEvent event;
    event.set_call_id(call_id_);
    *event.mutable_watch_job() = request;
    shell_.recipients.AddCall(call_id_, this);
    const absl::Status status = shell_.loop.Post(std::move(event));
    if (!status.ok() && shell_.recipients.RemoveCall(call_id_)) Finish(rpc::ToGrpc(status));
    return this;
  }

  void Item(const MessagePtr& item) override {
    Advance([&]() MESHRUN_REQUIRES(mu_) {
      Drop();
      Push(std::static_pointer_cast<const v1::WatchJobResponse>(item));
    });
  }
  void Reply(const absl::Status& status, const MessagePtr&) override {
    Advance([&]() MESHRUN_REQUIRES(mu_) { EndWith(status); });
  }
  void OnWriteDone(bool) override {
    Advance([&]() MESHRUN_REQUIRES(mu_) { Written(); });
  }
  void OnCancel() override {
    v1::StateEvent event;
    event.mutable_call_cancelled()->set_call_id(call_id_);
    shell_.loop.PostEnd(std::move(event));
  }
  void OnDone() override { delete this; }

 private:
  Shell shell_;
  const uint64_t call_id_;
};

// One item of each rank: none is left out.
class FlightRecordsCall
    : public OutgoingStream<grpc::ServerWriteReactor<v1::GetFlightRecordsResponse>,
                            v1::GetFlightRecordsResponse>,
      public PendingCall {
 public:
  explicit FlightRecordsCall(Shell shell) : shell_(shell), call_id_(shell.loop.NewId()) {}

  grpc::ServerWriteReactor<v1::GetFlightRecordsResponse>* Begin(
      const v1::GetFlightRecordsRequest& request) {
    v1::StateEvent event;
    event.set_call_id(call_id_);
    *event.mutable_get_flight_records() = request;
    shell_.recipients.AddCall(call_id_, this);
    const absl::Status status = shell_.loop.Post(std::move(event));
    if (!status.ok() && shell_.recipients.RemoveCall(call_id_)) Finish(rpc::ToGrpc(status));
    return this;
  }

  void Item(const MessagePtr& item) override {
    Advance([&]() MESHRUN_REQUIRES(mu_) {
      Push(std::static_pointer_cast<const v1::GetFlightRecordsResponse>(item));
    });
  }
  void Reply(const absl::Status& status, const MessagePtr&) override {
    Advance([&]() MESHRUN_REQUIRES(mu_) { EndWith(status); });
  }
  void OnWriteDone(bool) override {
    Advance([&]() MESHRUN_REQUIRES(mu_) { Written(); });
  }
  void OnCancel() override {
    v1::StateEvent event;
    event.mutable_call_cancelled()->set_call_id(call_id_);
    shell_.loop.PostEnd(std::move(event));
  }
  void OnDone() override { delete this; }

 private:
  Shell shell_;
  const uint64_t call_id_;
};

}  // namespace

grpc::ServerUnaryReactor* JobService::SubmitJob(grpc::CallbackServerContext*,
                                                const v1::SubmitJobRequest* request,
                                                v1::SubmitJobResponse* response) {
  v1::StateEvent event;
  *event.mutable_submit_job() = *request;
  return (new UnaryCall<v1::SubmitJobResponse>(shell_, response))->Begin(std::move(event));
}

grpc::ServerUnaryReactor* JobService::GetJob(grpc::CallbackServerContext*,
                                             const v1::GetJobRequest* request,
                                             v1::GetJobResponse* response) {
  v1::StateEvent event;
  *event.mutable_get_job() = *request;
  return (new UnaryCall<v1::GetJobResponse>(shell_, response))->Begin(std::move(event));
}

grpc::ServerUnaryReactor* JobService::ListJobs(grpc::CallbackServerContext*,
                                               const v1::ListJobsRequest* request,
                                               v1::ListJobsResponse* response) {
  v1::StateEvent event;
  *event.mutable_list_jobs() = *request;
  return (new UnaryCall<v1::ListJobsResponse>(shell_, response))->Begin(std::move(event));
}

grpc::ServerUnaryReactor* JobService::CancelJob(grpc::CallbackServerContext*,
                                                const v1::CancelJobRequest* request,
                                                v1::CancelJobResponse* response) {
  v1::StateEvent event;
  *event.mutable_cancel_job() = *request;
  return (new UnaryCall<v1::CancelJobResponse>(shell_, response))->Begin(std::move(event));
}

grpc::ServerWriteReactor<v1::WatchJobResponse>* JobService::WatchJob(
    grpc::CallbackServerContext*, const v1::WatchJobRequest* request) {
  return (new WatchCall(shell_))->Begin(*request);
}

grpc::ServerWriteReactor<v1::ReadLogsResponse>* JobService::ReadLogs(
    grpc::CallbackServerContext*, const v1::ReadLogsRequest* request) {
  return relay_.Read(*request);
}

grpc::ServerWriteReactor<v1::GetFlightRecordsResponse>* JobService::GetFlightRecords(
    grpc::CallbackServerContext*, const v1::GetFlightRecordsRequest* request) {
  return (new FlightRecordsCall(shell_))->Begin(*request);
}

}  // namespace meshrun::coordinator
