#include "worker/dumps/stack_uploads.h"

#include <utility>

#include "core/log.h"
#include "core/rpc/channel.h"
#include "core/rpc/status_conversion.h"

namespace meshrun::worker {

void StackUploads::Send(v1::UploadStackRequest request) {
  struct Call {
    std::shared_ptr<rpc::StubOf<v1::SessionService>> stubs;
    std::shared_ptr<v1::SessionService::Stub> stub;
    grpc::ClientContext context;
    v1::UploadStackRequest request;
    v1::UploadStackResponse response;
  };
  const auto call = std::make_shared<Call>();
  call->stubs = stub_;
  call->stub = stub_->Get();
  call->request = std::move(request);
  call->request.mutable_fence()->set_node_id(node_id_);
  call->request.mutable_fence()->set_incarnation(incarnation_);
  rpc::SetTimeout(call->context, kTimeout);
  call->stub->async()->UploadStack(
      &call->context, &call->request, &call->response, [call](const grpc::Status& status) {
        call->stubs->OnEnd(rpc::FromGrpc(status));
        if (status.ok()) return;
        log::Debug("a stack was not taken", {{"job", call->request.fence().job_id()},
                                             {"rank", call->request.stack().rank()},
                                             {"why", rpc::FromGrpc(status)}});
      });
}

}  // namespace meshrun::worker
