#include "coordinator/services/job_service.h"

#include "core/mutex.h"

namespace meshrun::coordinator {
namespace {

// Keeps the newest state alone when the reader is slow; the last one is always delivered.
class WatchCall : public grpc::ServerWriteReactor<v1::WatchJobResponse>, public PendingCall {
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
      next_ = std::static_pointer_cast<const v1::WatchJobResponse>(item);
    });
  }
  void Reply(const absl::Status& status, const MessagePtr&) override {
    Advance([&]() MESHRUN_REQUIRES(mu_) {
      ending_ = true;
      end_ = status;
    });
  }
  void OnWriteDone(bool) override {
    Advance([&]() MESHRUN_REQUIRES(mu_) { writing_ = nullptr; });
  }
  void OnCancel() override {
    v1::StateEvent event;
    event.mutable_call_cancelled()->set_call_id(call_id_);
    shell_.loop.PostEnd(std::move(event));
  }
  void OnDone() override { delete this; }

 private:
  // Makes a change and starts the operation that follows from it. The one who ends the call is the
  // last to touch it: change and decision are one step.
  template <typename Change>
  void Advance(Change change) {
    const v1::WatchJobResponse* write = nullptr;
    grpc::Status end;
    {
      MutexLock lock(mu_);
      change();
      if (writing_ != nullptr || finished_) return;
      if (next_ != nullptr) {
        writing_ = std::exchange(next_, nullptr);
        write = writing_.get();
      } else if (ending_) {
        finished_ = true;
        end = rpc::ToGrpc(end_);
      } else {
        return;
      }
    }
    if (write != nullptr) {
      StartWrite(write);
    } else {
      Finish(end);
    }
  }

  Shell shell_;
  const uint64_t call_id_;
  Mutex mu_;
  std::shared_ptr<const v1::WatchJobResponse> next_ MESHRUN_GUARDED_BY(mu_);
  std::shared_ptr<const v1::WatchJobResponse> writing_ MESHRUN_GUARDED_BY(mu_);
  bool ending_ MESHRUN_GUARDED_BY(mu_) = false;
  bool finished_ MESHRUN_GUARDED_BY(mu_) = false;
  absl::Status end_ MESHRUN_GUARDED_BY(mu_);
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

}  // namespace meshrun::coordinator
