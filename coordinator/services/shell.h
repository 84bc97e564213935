// What every service needs to turn a call into an event and an action into an answer.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <utility>

#include "coordinator/event_loop/event_loop.h"
#include "coordinator/event_loop/recipients.h"
#include "coordinator/services/stamp_caller.h"
#include "core/certificates/standing.h"
#include "core/rpc/caller.h"
#include "core/rpc/status_conversion.h"

namespace meshrun::coordinator {

struct Shell {
  EventLoop& loop;
  Recipients& recipients;
  // Null without TLS.
  certificates::Standing* standing = nullptr;
};

// Ends the stream of a caller as soon as the caller's certificate expires or is denied. Its
// destructor ends the watch.
class CertificateWatch {
 public:
  CertificateWatch() = default;
  ~CertificateWatch() {
    if (standing_ != nullptr) standing_->Forget(watch_);
  }
  CertificateWatch(const CertificateWatch&) = delete;
  CertificateWatch& operator=(const CertificateWatch&) = delete;

  // `end` as of Standing::Watch.
  void Begin(const Shell& shell, const grpc::CallbackServerContext& context,
             std::function<void(const absl::Status&)> end) {
    const auto peer = context.auth_context();
    if (shell.standing == nullptr || !rpc::ShowsCertificate(*peer)) return;
    standing_ = shell.standing;
    watch_ = standing_->Watch(rpc::CertificateOf(*peer), std::move(end));
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
  grpc::ServerUnaryReactor* Begin(const grpc::CallbackServerContext& context,
                                  v1::StateEvent event) {
    event.set_call_id(call_id_);
    StampCaller(context, event);
    shell_.recipients.AddCall(call_id_, this);
    const absl::Status status = shell_.loop.Post(std::move(event));
    if (!status.ok() && shell_.recipients.RemoveCall(call_id_))
      Finish(rpc::ToGrpc(status, v1::ERROR_ORIGIN_COORDINATOR));
    return this;
  }

  void Reply(const absl::Status& status, const MessagePtr& response) override {
    if (response != nullptr) response_->CopyFrom(*response);
    if (status.ok()) BeforeFinish(*response_);
    Finish(rpc::ToGrpc(status, v1::ERROR_ORIGIN_COORDINATOR));
  }
  void OnCancel() override {
    v1::StateEvent event;
    event.mutable_call_cancelled()->set_call_id(call_id_);
    shell_.loop.PostEnd(std::move(event));
  }
  void OnDone() override { delete this; }

 protected:
  virtual void BeforeFinish(Response&) {}
  Shell& shell() { return shell_; }

 private:
  Shell shell_;
  const uint64_t call_id_;
  Response* const response_;
};

// Posts a unary call as an event. `kMutableField` is the accessor of the event's field for the
// request. The state machine's answer is the call's.
template <auto kMutableField, typename Call, typename Request, typename Response>
grpc::ServerUnaryReactor* PostUnary(Shell shell, const grpc::CallbackServerContext& context,
                                    const Request& request, Response* response) {
  v1::StateEvent event;
  *(event.*kMutableField)() = request;
  return (new Call(shell, response))->Begin(context, std::move(event));
}

// Defines Service::Method. `field`: the call's name in StateEvent.
#define MESHRUN_POST_UNARY(Service, Method, field)                                       \
  grpc::ServerUnaryReactor* Service::Method(grpc::CallbackServerContext* context,        \
                                            const v1::Method##Request* request,          \
                                            v1::Method##Response* response) {            \
    return PostUnary<&v1::StateEvent::mutable_##field, UnaryCall<v1::Method##Response>>( \
        shell_, *context, *request, response);                                           \
  }

}  // namespace meshrun::coordinator
