#include "worker/agent_server/store_proxy.h"

#include <functional>
#include <type_traits>

#include "core/rpc/status_conversion.h"

namespace meshrun::worker {
namespace {

// One call on its way. Finish is called exactly once: on the loop with a refusal, or with the
// coordinator's answer, which a cancelled call gets too.
template <typename Request, typename Response>
class ForwardedCall : public grpc::ServerUnaryReactor {
 public:
  using Done = std::function<void(grpc::Status)>;
  using Start = std::function<void(grpc::ClientContext*, const Request*, Response*, Done)>;

  ForwardedCall(StoreProxy& proxy, grpc::CallbackServerContext* context, const Request* request,
                Response* response, Start start)
      : proxy_(proxy), request_(*request), response_(response), start_(std::move(start)) {
    const auto token = context->client_metadata().find("meshrun-token");
    if (token != context->client_metadata().end()) {
      token_.assign(token->second.data(), token->second.size());
    }
    client_.set_deadline(context->deadline());
    proxy_.loop().Post([this] { Forward(); });
  }

  void OnCancel() override { client_.TryCancel(); }
  void OnDone() override { delete this; }

 private:
  void Forward() {
    const auto generation = proxy_.generations().Authenticate(request_.fence(), token_);
    if (!generation.ok()) {
      Finish(rpc::ToGrpc(OverNotUnknown(generation.status()), v1::ERROR_ORIGIN_WORKER));
      return;
    }
    if constexpr (std::is_same_v<Request, v1::GetWorldRequest>) {
      if ((*generation)->world) {
        *response_ = *(*generation)->world;
        Finish(grpc::Status::OK);
        return;
      }
      // One question for all ranks of the host.
      if (!proxy_.BeginWorld(request_.fence(), [this] { Forward(); })) return;
    }
    request_.mutable_fence()->set_node_id(proxy_.node_id());
    request_.mutable_fence()->set_incarnation(proxy_.incarnation());
    // Ranks survive a restart of the coordinator: their calls carry no term.
    request_.mutable_fence()->set_term(0);
    start_(&client_, &request_, response_,
           [this](const grpc::Status& status) { OnAnswer(status); });
  }

  void OnAnswer(const grpc::Status& status) {
    if constexpr (std::is_same_v<Request, v1::GetWorldRequest>) {
      proxy_.loop().Post([&proxy = proxy_, fence = request_.fence(), token = token_,
                          world = *response_, ok = status.ok()] {
        const auto generation = proxy.generations().Authenticate(fence, token);
        if (ok && generation.ok()) (*generation)->world = world;
        proxy.EndWorld(fence);
      });
    }
    Finish(status);
  }

  // The calling rank ran here: if its generation is no longer here, it is over.
  static absl::Status OverNotUnknown(const absl::Status& status) {
    return absl::IsNotFound(status) ? absl::FailedPreconditionError(status.message()) : status;
  }

  StoreProxy& proxy_;
  Request request_;
  Response* const response_;
  const Start start_;
  std::string token_;
  grpc::ClientContext client_;
};

}  // namespace

bool StoreProxy::BeginWorld(const v1::Fence& fence, EventLoop::Task again) {
  const auto [waiting, is_first] = worlds_.try_emplace({fence.job_id(), fence.generation()});
  if (!is_first) waiting->second.push_back(std::move(again));
  return is_first;
}

void StoreProxy::EndWorld(const v1::Fence& fence) {
  const auto waiting = worlds_.extract({fence.job_id(), fence.generation()});
  if (waiting.empty()) return;
  for (const EventLoop::Task& again : waiting.mapped()) again();
}

#define MESHRUN_FORWARD(Method)                                                                    \
  grpc::ServerUnaryReactor* StoreProxy::Method(grpc::CallbackServerContext* context,               \
                                               const v1::Method##Request* request,                 \
                                               v1::Method##Response* response) {                   \
    return new ForwardedCall<v1::Method##Request, v1::Method##Response>(                           \
        *this, context, request, response,                                                         \
        [this](grpc::ClientContext* client, const v1::Method##Request* q, v1::Method##Response* r, \
               std::function<void(grpc::Status)> done) {                                           \
          stub_->async()->Method(client, q, r, std::move(done));                                   \
        });                                                                                        \
  }

MESHRUN_FORWARD(SetValues)
MESHRUN_FORWARD(GetValues)
MESHRUN_FORWARD(WaitKeys)
MESHRUN_FORWARD(AddValue)
MESHRUN_FORWARD(CompareSetValue)
MESHRUN_FORWARD(AppendValue)
MESHRUN_FORWARD(DeleteKey)
MESHRUN_FORWARD(CountKeys)
MESHRUN_FORWARD(EnterBarrier)
MESHRUN_FORWARD(PublishUniqueId)
MESHRUN_FORWARD(AwaitUniqueId)
MESHRUN_FORWARD(RegisterGroup)
MESHRUN_FORWARD(GetWorld)
MESHRUN_FORWARD(CommitCheckpoint)
MESHRUN_FORWARD(GetCheckpoint)
#undef MESHRUN_FORWARD

}  // namespace meshrun::worker
