#include "coordinator/services/job_service.h"

#include "coordinator/services/outgoing_stream.h"
#include "core/job_delta.h"

namespace meshrun::coordinator {
namespace {

// What a slow reader gets.
enum class Sends {
  kAll,
  kMerged,  // one item in place of those that have not left
};

// Begins with an event. The answers of the state machine to its call_id are written in order.
template <typename Response, Sends kSends>
class StreamCall : public OutgoingStream<grpc::ServerWriteReactor<Response>, Response>,
                   public PendingCall {
 public:
  explicit StreamCall(Shell shell) : shell_(shell), call_id_(shell.loop.NewId()) {}

  // `refused`: what Shell::Receive says of the request.
  grpc::ServerWriteReactor<Response>* Begin(grpc::CallbackServerContext& context,
                                            v1::StateEvent event, const absl::Status& refused) {
    context.AddInitialMetadata(rpc::kReachedKey, "1");
    this->StartSendInitialMetadata();
    event.set_call_id(call_id_);
    StampCaller(context, shell_.standing, event);
    shell_.recipients.AddCall(call_id_, this);
    certificate_.Begin(shell_, context, WallNanos(0),
                       [shell = shell_, id = call_id_, end = expelled_](const absl::Status& why) {
                         {
                           MutexLock lock(end->mu);
                           end->why = why;
                         }
                         // Its answer ends the call: only the loop's thread may do that.
                         v1::StateEvent event;
                         event.mutable_call_cancelled()->set_call_id(id);
                         shell.loop.PostEnd(std::move(event));
                       });
    const absl::Status status =
        refused.ok() ? shell_.PostStream(context, std::move(event), &place_) : refused;
    if (!status.ok() && shell_.recipients.RemoveCall(call_id_))
      this->Finish(rpc::ToGrpc(status, v1::ERROR_ORIGIN_COORDINATOR));
    return this;
  }

  void Item(const MessagePtr& item) override {
    this->Advance([&]() MESHRUN_REQUIRES(this->mu_) {
      auto next = std::static_pointer_cast<const Response>(item);
      if constexpr (kSends == Sends::kMerged) {
        if (const auto waiting = this->TakeUnsent()) {
          auto merged = std::make_shared<Response>(*waiting);
          Merge(*next, merged.get());
          next = std::move(merged);
        }
      }
      this->Push(std::move(next));
    });
  }
  void Reply(const absl::Status& status, const MessagePtr&) override {
    const absl::Status expelled = expelled_->Why();
    this->Advance(
        [&]() MESHRUN_REQUIRES(this->mu_) { this->EndWith(expelled.ok() ? status : expelled); });
  }
  void OnWriteDone(bool) override {
    this->Advance([&]() MESHRUN_REQUIRES(this->mu_) { this->Written(); });
  }
  void OnCancel() override {
    v1::StateEvent event;
    event.mutable_call_cancelled()->set_call_id(call_id_);
    shell_.loop.PostEnd(std::move(event));
  }
  void OnDone() override { delete this; }

 private:
  // Outlives the call: the thread that looks after certificates writes it.
  struct Expelled {
    absl::Status Why() {
      MutexLock lock(mu);
      return why;
    }
    Mutex mu;
    absl::Status why MESHRUN_GUARDED_BY(mu);
  };

  Shell shell_;
  const uint64_t call_id_;
  const std::shared_ptr<Expelled> expelled_ = std::make_shared<Expelled>();
  CertificateWatch certificate_;
  OpenStreams::Place place_;
};

}  // namespace

MESHRUN_POST_UNARY(JobService, SubmitJob, submit_job)
MESHRUN_POST_UNARY(JobService, GetJob, get_job)
MESHRUN_POST_UNARY(JobService, ListJobs, list_jobs)
MESHRUN_POST_UNARY(JobService, CancelJob, cancel_job)
MESHRUN_POST_UNARY(JobService, UpdateJob, update_job)
MESHRUN_POST_UNARY(JobService, SignalJob, signal_job)

grpc::ServerWriteReactor<v1::WatchJobResponse>* JobService::WatchJob(
    grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) {
  v1::StateEvent event;
  *event.mutable_watch_job() = *request;
  return (new StreamCall<v1::WatchJobResponse, Sends::kMerged>(shell_))
      ->Begin(*context, std::move(event), shell_.Receive(*context, *request));
}

grpc::ServerWriteReactor<v1::ReadLogsResponse>* JobService::ReadLogs(
    grpc::CallbackServerContext* context, const v1::ReadLogsRequest* request) {
  context->AddInitialMetadata(rpc::kReachedKey, "1");
  return relay_.Read(*context, *request);
}

grpc::ServerWriteReactor<v1::GetFlightRecordsResponse>* JobService::GetFlightRecords(
    grpc::CallbackServerContext* context, const v1::GetFlightRecordsRequest* request) {
  v1::StateEvent event;
  *event.mutable_get_flight_records() = *request;
  return (new StreamCall<v1::GetFlightRecordsResponse, Sends::kAll>(shell_))
      ->Begin(*context, std::move(event), shell_.Receive(*context, *request));
}

grpc::ServerWriteReactor<v1::GetStacksResponse>* JobService::GetStacks(
    grpc::CallbackServerContext* context, const v1::GetStacksRequest* request) {
  v1::StateEvent event;
  *event.mutable_get_stacks() = *request;
  return (new StreamCall<v1::GetStacksResponse, Sends::kAll>(shell_))
      ->Begin(*context, std::move(event), shell_.Receive(*context, *request));
}

}  // namespace meshrun::coordinator
