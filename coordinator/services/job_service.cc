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
  grpc::ServerWriteReactor<Response>* Begin(const Sender& sender, v1::StateEvent event,
                                            const absl::Status& refused) {
    this->StartSendInitialMetadata();
    event.set_call_id(call_id_);
    StampCaller(sender, shell_.standing, event);
    shell_.recipients.AddCall(call_id_, this);
    certificate_.Begin(shell_, sender, WallNanos(0),
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
        refused.ok() ? shell_.PostStream(sender, std::move(event), &place_) : refused;
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

// `kMutableField`: the accessor of the event's field for the request.
template <auto kMutableField, Sends kSends, typename Response, typename Request>
grpc::ServerWriteReactor<Response>* BeginStream(const Shell& shell, const Sender& sender,
                                                const Request& request) {
  v1::StateEvent event;
  *(event.*kMutableField)() = request;
  const absl::Status refused = shell.Receive(sender, request);
  return (new StreamCall<Response, kSends>(shell))->Begin(sender, std::move(event), refused);
}

}  // namespace

MESHRUN_POST_UNARY(JobService, SubmitJob, submit_job)
MESHRUN_POST_UNARY_OF_ANY(JobService, GetJob, get_job)
MESHRUN_POST_UNARY_OF_ANY(JobService, ListJobs, list_jobs)
MESHRUN_POST_UNARY_OF_ANY(JobService, CancelJob, cancel_job)
MESHRUN_POST_UNARY_OF_ANY(JobService, UpdateJob, update_job)
MESHRUN_POST_UNARY(JobService, SignalJob, signal_job)

grpc::ServerWriteReactor<v1::WatchJobResponse>* JobService::WatchJob(
    const Sender& sender, const v1::WatchJobRequest& request) {
  return BeginStream<&v1::StateEvent::mutable_watch_job, Sends::kMerged, v1::WatchJobResponse>(
      shell_, sender, request);
}

grpc::ServerWriteReactor<v1::ReadLogsResponse>* JobService::ReadLogs(
    const Sender& sender, const v1::ReadLogsRequest& request) {
  return relay_.Read(sender, request);
}

grpc::ServerWriteReactor<v1::ReadPicturesResponse>* JobService::ReadPictures(
    const Sender& sender, const v1::ReadPicturesRequest& request) {
  return relay_.Read(sender, request);
}

grpc::ServerWriteReactor<v1::GetFlightRecordsResponse>* JobService::GetFlightRecords(
    const Sender& sender, const v1::GetFlightRecordsRequest& request) {
  return BeginStream<&v1::StateEvent::mutable_get_flight_records, Sends::kAll,
                     v1::GetFlightRecordsResponse>(shell_, sender, request);
}

grpc::ServerWriteReactor<v1::GetStacksResponse>* JobService::GetStacks(
    const Sender& sender, const v1::GetStacksRequest& request) {
  return BeginStream<&v1::StateEvent::mutable_get_stacks, Sends::kAll, v1::GetStacksResponse>(
      shell_, sender, request);
}

// Over gRPC: a client then knows that its call has reached a server of ours.
#define MESHRUN_STREAM_OVER_GRPC(Method)                                          \
  grpc::ServerWriteReactor<v1::Method##Response>* JobService::Method(             \
      grpc::CallbackServerContext* context, const v1::Method##Request* request) { \
    context->AddInitialMetadata(rpc::kReachedKey, "1");                           \
    return Method(SenderOf(*context), *request);                                  \
  }

MESHRUN_STREAM_OVER_GRPC(WatchJob)
MESHRUN_STREAM_OVER_GRPC(ReadLogs)
MESHRUN_STREAM_OVER_GRPC(ReadPictures)
MESHRUN_STREAM_OVER_GRPC(GetFlightRecords)
MESHRUN_STREAM_OVER_GRPC(GetStacks)

}  // namespace meshrun::coordinator
