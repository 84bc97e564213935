#include "coordinator/services/session_service.h"

#include <fmt/format.h>

#include <atomic>
#include <string>

#include "coordinator/services/outgoing_stream.h"

namespace meshrun::coordinator {
namespace {

// The most commands that wait for a worker. A worker that is so far behind is ill: its session
// ends, and its next Hello tells what it has.
constexpr size_t kMaxQueued = 4096;

using Reactor = grpc::ServerBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse>;

class SessionStream : public OutgoingStream<Reactor, v1::OpenSessionResponse>,
                      public Session,
                      public std::enable_shared_from_this<SessionStream> {
 public:
  SessionStream(Shell shell, LogRelay& relay, grpc::CallbackServerContext* context)
      : shell_(shell),
        relay_(relay),
        context_(context),
        sender_(SenderOf(*context)),
        session_id_(shell.loop.NewId()) {}

  void Begin() {
    shell_.Receive(sender_);
    self_ = shared_from_this();
    shell_.recipients.AddSession(session_id_, self_);
    certificate_.Begin(shell_, sender_, shell_.certificate_grace,
                       [shell = shell_, id = session_id_](const absl::Status& why) {
                         // Before the loop hears of it: it would close the session without a
                         // reason.
                         shell.recipients.Close(id, why);
                         v1::StateEvent notice;
                         notice.mutable_notice()->set_kind("CertificateRefused");
                         notice.mutable_notice()->set_message(fmt::format(
                             "a worker's session ends: {}", std::string(why.message())));
                         shell.loop.PostEnd(std::move(notice));
                         v1::StateEvent event;
                         event.mutable_session_closed()->set_session_id(id);
                         shell.loop.PostEnd(std::move(event));
                       });
    if (auto place = Shell::Open(shell_.sessions, sender_); place.ok()) {
      place_ = *std::move(place);
      StartRead(&request_);
    } else {
      Close(place.status());
      SayClosed();
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      SayClosed();
      // The loop has stopped: nothing else would end the call.
      Close(absl::OkStatus());
      return;
    }
    if (const absl::Status status = rpc::CheckBounds(request_); !status.ok()) {
      // Before the loop hears of it, and would close the session without a reason.
      Close(shell_.TurnAway(sender_, "OpenSession", status));
      SayClosed();
      return;
    }
    v1::StateEvent event;
    event.mutable_session_message()->set_session_id(session_id_);
    event.mutable_session_message()->mutable_message()->Swap(&request_);
    // Later messages speak for the node of the Hello.
    if (event.session_message().message().has_hello())
      StampWorker(sender_, shell_.standing, shell_.certificate_grace, event);
    const absl::StatusOr<bool> reads_on =
        shell_.loop.PostMessage(std::move(event), [self = shared_from_this()] { self->ReadOn(); });
    if (!reads_on.ok()) {
      SayClosed();
      Close(reads_on.status());
    } else if (*reads_on) {
      StartRead(&request_);
    }
  }

  void Send(v1::OpenSessionResponse message) override {
    Advance([&]() MESHRUN_REQUIRES(mu_) {
      if (ending()) return;
      if (pending() < kMaxQueued) {
        Push(std::make_shared<v1::OpenSessionResponse>(std::move(message)));
      } else {
        EndWith(absl::ResourceExhaustedError("the worker does not take its commands"));
        // Under the lock: before the end the context is there.
        context_->TryCancel();
      }
    });
  }

  void Close(const absl::Status& status) override {
    Advance([&]() MESHRUN_REQUIRES(mu_) {
      if (ending()) return;
      EndWith(status);
      // The peer was silent for its lease: the write under way may never end.
      if (writing() && absl::IsDeadlineExceeded(status)) context_->TryCancel();
    });
  }

  void OnWriteDone(bool ok) override {
    Advance([&]() MESHRUN_REQUIRES(mu_) {
      Written();
      if (!ok) Drop();
    });
  }

  void OnDone() override {
    certificate_.End();
    // Also of one that waited for room.
    SayClosed();
    shell_.recipients.Close(session_id_, absl::OkStatus());
    self_.reset();
  }

 private:
  // The loop has room again.
  void ReadOn() {
    StartOutside([this] { StartRead(&request_); });
  }
  void SayClosed() {
    if (said_closed_.exchange(true)) return;
    v1::StateEvent event;
    event.mutable_session_closed()->set_session_id(session_id_);
    shell_.loop.PostEnd(std::move(event));
    relay_.OnSessionEnded(session_id_);
  }

  Shell shell_;
  LogRelay& relay_;
  grpc::CallbackServerContext* const context_;
  const Sender sender_;
  const uint64_t session_id_;
  v1::OpenSessionRequest request_;
  std::atomic<bool> said_closed_{false};
  std::shared_ptr<SessionStream> self_;
  CertificateWatch certificate_;
  OpenStreams::Place place_;
};

}  // namespace

grpc::ServerBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse>*
SessionService::OpenSession(grpc::CallbackServerContext* context) {
  const auto stream = std::make_shared<SessionStream>(shell_, relay_, context);
  stream->Begin();
  return stream.get();
}

grpc::ServerReadReactor<v1::UploadLogRequest>* SessionService::UploadLog(
    grpc::CallbackServerContext* context, v1::UploadLogResponse*) {
  return relay_.Upload(context);
}

MESHRUN_POST_UNARY(SessionService, UploadFlightRecord, upload_flight_record)
MESHRUN_POST_UNARY(SessionService, UploadStack, upload_stack)

}  // namespace meshrun::coordinator
