#include "worker/dumps/rank_uploads.h"

#include <functional>
#include <utility>

#include "core/log.h"
#include "core/rpc/channel.h"
#include "core/rpc/status_conversion.h"

namespace meshrun::worker {
namespace {

using Stubs = rpc::StubOf<v1::SessionService>;

// `start` begins the call; `what` and `rank` are for the log.
template <typename Request, typename Response, typename Start>
void Begin(std::shared_ptr<Stubs> stubs, Request request, const char* what, int rank,
           const Start& start) {
  struct Call {
    std::shared_ptr<Stubs> stubs;
    std::shared_ptr<v1::SessionService::Stub> stub;
    grpc::ClientContext context;
    Request request;
    Response response;
  };
  const auto call = std::make_shared<Call>();
  call->stubs = std::move(stubs);
  call->stub = call->stubs->Get();
  call->request = std::move(request);
  rpc::SetTimeout(call->context, RankUploads::kTimeout);
  start(*call, [call, what, rank](const grpc::Status& status) {
    call->stubs->OnEnd(rpc::FromGrpc(status), call->stub);
    if (status.ok()) return;
    log::Debug("what was asked for was not taken", {{"what", what},
                                                    {"job", call->request.fence().job_id()},
                                                    {"rank", rank},
                                                    {"why", rpc::FromGrpc(status)}});
  });
}

}  // namespace

void RankUploads::Send(v1::UploadStackRequest request) {
  request.mutable_fence()->set_node_id(node_id_);
  request.mutable_fence()->set_incarnation(incarnation_);
  const int rank = request.stack().rank();
  Begin<v1::UploadStackRequest, v1::UploadStackResponse>(
      stub_, std::move(request), "stack", rank, [](auto& call, auto done) {
        call.stub->async()->UploadStack(&call.context, &call.request, &call.response,
                                        std::move(done));
      });
}

void RankUploads::Send(v1::UploadFlightRecordRequest request) {
  request.mutable_fence()->set_node_id(node_id_);
  request.mutable_fence()->set_incarnation(incarnation_);
  const int rank = request.record().rank();
  Begin<v1::UploadFlightRecordRequest, v1::UploadFlightRecordResponse>(
      stub_, std::move(request), "flight record", rank, [](auto& call, auto done) {
        call.stub->async()->UploadFlightRecord(&call.context, &call.request, &call.response,
                                               std::move(done));
      });
}

}  // namespace meshrun::worker
