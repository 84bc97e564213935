// What every service needs to turn a call into an event and an action into an answer.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "coordinator/event_loop/event_loop.h"
#include "coordinator/event_loop/recipients.h"
#include "coordinator/leadership/leadership.h"
#include "coordinator/metrics/coordinator_metrics.h"
#include "coordinator/services/call_gate.h"
#include "coordinator/services/open_streams.h"
#include "coordinator/services/refused_calls.h"
#include "coordinator/services/sender.h"
#include "coordinator/services/stamp_caller.h"
#include "coordinator/state_machine/callers.h"
#include "core/certificates/standing.h"
#include "core/rpc/acceptor.h"
#include "core/rpc/bounds.h"
#include "core/rpc/status_conversion.h"
#include "core/status.h"

namespace meshrun::coordinator {

struct Shell {
  static constexpr size_t kBytesOfAnItem = 64;

  EventLoop& loop;
  Recipients& recipients;
  // Null without TLS.
  certificates::Standing* standing = nullptr;
  // Null on a Unix socket.
  rpc::Acceptor* acceptor = nullptr;
  // As of rpc::Security.
  WallNanos certificate_grace{0};
  // Null where the coordinator keeps no state.
  StateStore* store = nullptr;
  // Null without TLS.
  OpenStreams* streams = nullptr;
  OpenStreams* sessions = nullptr;
  CallGate* gate = nullptr;
  // Never null in a server.
  RefusedCalls* refused = nullptr;
  // Where the HTTP API is; empty: nowhere. Null as well.
  const std::string* http_address = nullptr;
  const Leadership* leadership = nullptr;
  // DescribeClusterResponse.state_engine.
  std::string_view state_engine = {};
  // Null: nothing is counted.
  CoordinatorMetrics* metrics = nullptr;

  // The request of a call has been read. INVALID_ARGUMENT: it is beyond its bounds.
  absl::Status Receive(const Sender& sender, const google::protobuf::Message& request) const {
    size_t items = 0;
    absl::Status status = rpc::CheckBounds(request, &items);
    // A message within a message costs more than its bytes.
    if (IsCounted(sender)) {
      gate->OnRequest(sender.identity, request.ByteSizeLong() + items * kBytesOfAnItem);
    }
    Prove(sender);
    if (status.ok()) return status;
    // "SubmitJobRequest".
    std::string_view method = request.GetDescriptor()->name();
    method.remove_suffix(std::string_view("Request").size());
    return TurnAway(sender, method, std::move(status));
  }
  // A stream of requests has begun.
  void Receive(const Sender& sender) const { Prove(sender); }
  // Whether the gate counts the sender's calls.
  bool IsCounted(const Sender& sender) const { return gate != nullptr && sender.shows_certificate; }
  // Posts the event that a stream of answers begins with; `place` is the stream's. Errors: those of
  // OpenStreams and of EventLoop::Post.
  absl::Status PostStream(const Sender& sender, v1::StateEvent event,
                          OpenStreams::Place* place) const {
    const std::string method = MethodOf(event);
    auto opened = Open(streams, sender);
    absl::Status status = opened.ok() ? loop.Post(std::move(event)) : opened.status();
    if (!status.ok()) return TurnAway(sender, method, std::move(status));
    *place = *std::move(opened);
    return status;
  }
  // The call ends with `why`, and the audit is told.
  absl::Status TurnAway(const Sender& sender, std::string_view method, absl::Status why) const {
    if (absl::IsUnavailable(why)) return why;
    v1::StateEvent event;
    event.mutable_outside_call()->set_method(std::string(method));
    StampCaller(sender, standing, event);
    refused->OnRefused(event.caller(), method, why);
    return why;
  }
  // A stream begins, of `streams` or `sessions`. RESOURCE_EXHAUSTED: see OpenStreams.
  static absl::StatusOr<OpenStreams::Place> Open(OpenStreams* streams, const Sender& sender) {
    if (streams == nullptr || !sender.shows_certificate) return OpenStreams::Place();
    if (CallGate::SpeaksForAll(sender.identity)) return OpenStreams::Place();
    return streams->Open(CallGate::NameOf(sender.identity));
  }

 private:
  void Prove(const Sender& sender) const {
    if (acceptor == nullptr) return;
    const bool is_known = IsCounted(sender) && !CallGate::SpeaksForAll(sender.identity);
    acceptor->Prove(sender.peer, is_known ? CallGate::NameOf(sender.identity) : "");
  }
};

// Ends the stream of a caller as soon as the caller's certificate is denied, or ended longer than
// `grace` ago.
class CertificateWatch {
 public:
  CertificateWatch() = default;
  ~CertificateWatch() { End(); }
  CertificateWatch(const CertificateWatch&) = delete;
  CertificateWatch& operator=(const CertificateWatch&) = delete;

  // `end` as of Standing::Watch.
  void Begin(const Shell& shell, const Sender& sender, WallNanos grace,
             std::function<void(const absl::Status&)> end) {
    if (shell.standing == nullptr || !sender.shows_certificate) return;
    standing_ = shell.standing;
    watch_ = standing_->Watch(sender.certificate, grace, std::move(end));
  }
  // Ends the watch, as the destructor does: in the stream's OnDone at the latest, since other
  // threads may hold the stream longer. Waits for nothing, so a call of `end` may go on; a server
  // calls Standing::Quiesce before it is destroyed. Idempotent.
  void End() {
    if (standing_ != nullptr) std::exchange(standing_, nullptr)->Forget(watch_);
  }

 private:
  certificates::Standing* standing_ = nullptr;
  uint64_t watch_ = 0;
};

// A unary call: posts its event, and answers when the state machine does. Deletes itself.
template <typename Response>
class UnaryCall : public grpc::ServerUnaryReactor, public PendingCall {
 public:
  UnaryCall(Shell shell, Response* response)
      : shell_(shell), call_id_(shell.loop.NewId()), response_(response) {}

  // Not in the constructor: the answer may come before this returns.
  grpc::ServerUnaryReactor* Begin(const Sender& sender, v1::StateEvent event) {
    event.set_call_id(call_id_);
    StampCaller(sender, shell_.standing, event);
    is_counted_ = shell_.IsCounted(sender);
    if (is_counted_) {
      caller_ = sender.identity;
      shell_.gate->OnCall(caller_);
    }
    shell_.recipients.AddCall(call_id_, this);
    method_ = MethodOf(event);
    absl::Status status = shell_.loop.Post(std::move(event));
    if (!status.ok()) status = shell_.TurnAway(sender, method_, std::move(status));
    if (!status.ok() && shell_.recipients.RemoveCall(call_id_)) Reply(status, nullptr);
    return this;
  }

  void Reply(const absl::Status& status, const MessagePtr& response) override {
    if (shell_.metrics != nullptr)
      shell_.metrics->OnCall(method_, status.code(), std::chrono::steady_clock::now() - began_);
    if (response != nullptr) response_->CopyFrom(*response);
    if (status.ok()) BeforeFinish(*response_);
    Finish(rpc::ToGrpc(status, v1::ERROR_ORIGIN_COORDINATOR));
  }
  void OnCancel() override {
    v1::StateEvent event;
    event.mutable_call_cancelled()->set_call_id(call_id_);
    shell_.loop.PostEnd(std::move(event));
  }
  void OnDone() override {
    if (is_counted_) shell_.gate->OnAnswer(caller_, response_->ByteSizeLong());
    delete this;
  }

 protected:
  virtual void BeforeFinish(Response&) {}
  Shell& shell() { return shell_; }

 private:
  Shell shell_;
  const uint64_t call_id_;
  Response* const response_;
  // By the gate; only then `caller_` is known.
  bool is_counted_ = false;
  rpc::Identity caller_;
  std::string method_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

// A unary call that is answered at once. Deletes itself.
class RefusedCall : public grpc::ServerUnaryReactor {
 public:
  grpc::ServerUnaryReactor* Begin(const absl::Status& status) {
    Finish(rpc::ToGrpc(status, v1::ERROR_ORIGIN_COORDINATOR));
    return this;
  }
  void OnDone() override { delete this; }
};

// Posts a unary call as an event. `kMutableField` is the accessor of the event's field for the
// request. The state machine's answer is the call's. INVALID_ARGUMENT: the request is beyond its
// bounds.
template <auto kMutableField, typename Call, typename Request, typename Response>
grpc::ServerUnaryReactor* PostUnary(Shell shell, const Sender& sender, const Request& request,
                                    Response* response) {
  if (const absl::Status status = shell.Receive(sender, request); !status.ok()) {
    return (new RefusedCall)->Begin(status);
  }
  v1::StateEvent event;
  *(event.*kMutableField)() = request;
  return (new Call(shell, response))->Begin(sender, std::move(event));
}

// Defines Service::Method. `field`: the call's name in StateEvent.
#define MESHRUN_POST_UNARY(Service, Method, field)                                       \
  grpc::ServerUnaryReactor* Service::Method(grpc::CallbackServerContext* context,        \
                                            const v1::Method##Request* request,          \
                                            v1::Method##Response* response) {            \
    return PostUnary<&v1::StateEvent::mutable_##field, UnaryCall<v1::Method##Response>>( \
        shell_, SenderOf(*context), *request, response);                                 \
  }

// The same, and Service::Method for any sender.
#define MESHRUN_POST_UNARY_OF_ANY(Service, Method, field)                                         \
  MESHRUN_POST_UNARY(Service, Method, field)                                                      \
  grpc::ServerUnaryReactor* Service::Method(                                                      \
      const Sender& sender, const v1::Method##Request& request, v1::Method##Response* response) { \
    return PostUnary<&v1::StateEvent::mutable_##field, UnaryCall<v1::Method##Response>>(          \
        shell_, sender, request, response);                                                       \
  }

}  // namespace meshrun::coordinator
