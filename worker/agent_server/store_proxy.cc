#include "worker/agent_server/store_proxy.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <type_traits>

#include "core/rpc/bounds.h"
#include "core/rpc/status_conversion.h"
#include "core/status.h"

namespace meshrun::worker {
namespace {

std::string TokenOf(const grpc::CallbackServerContext& context) {
  const auto token = context.client_metadata().find("meshrun-token");
  return token == context.client_metadata().end()
             ? ""
             : std::string(token->second.data(), token->second.size());
}

// One call on its way. Finish is called exactly once: on the loop with a refusal, or with the
// coordinator's answer, which a cancelled call gets too.
template <typename Request, typename Response>
class ForwardedCall : public grpc::ServerUnaryReactor {
 public:
  using Done = std::function<void(grpc::Status)>;
  using Start = std::function<void(grpc::ClientContext*, const Request*, Response*, Done)>;

  ForwardedCall(StoreProxy& proxy, grpc::CallbackServerContext* context, const Request* request,
                Response* response, Start start)
      : proxy_(proxy),
        request_(*request),
        response_(response),
        start_(std::move(start)),
        token_(TokenOf(*context)) {
    client_.set_deadline(context->deadline());
    proxy_.loop().Post([this] { Forward(); });
  }

  void OnCancel() override {
    cancelled_ = true;
    client_.TryCancel();
  }
  void OnDone() override { delete this; }

 private:
  void Forward() {
    const auto generation = proxy_.Admit(request_, request_.fence(), token_);
    if (!generation.ok()) {
      Finish(rpc::ToGrpc(generation.status(), v1::ERROR_ORIGIN_WORKER));
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
    proxy_.Stamp(request_.mutable_fence());
    start_(&client_, &request_, response_,
           [this](const grpc::Status& status) { OnAnswer(rpc::EndOf(status, cancelled_)); });
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

  StoreProxy& proxy_;
  Request request_;
  Response* const response_;
  const Start start_;
  const std::string token_;
  grpc::ClientContext client_;
  std::atomic<bool> cancelled_{false};
};

// A rank's call of EnterBarrier, which may travel with those of its neighbours.
class BarrierEntryCall : public grpc::ServerUnaryReactor {
 public:
  BarrierEntryCall(StoreProxy& proxy, grpc::CallbackServerContext* context,
                   const v1::EnterBarrierRequest* request)
      : proxy_(proxy), id_(proxy.barriers().NewId()), token_(TokenOf(*context)) {
    entry_.request = *request;
    // Only a daemon speaks for several ranks.
    entry_.request.clear_others();
    entry_.deadline = context->deadline();
    proxy_.loop().Post([this] { Enter(); });
  }

  // After Enter, which was posted before.
  void OnCancel() override {
    proxy_.loop().Post([&proxy = proxy_, id = id_] { proxy.barriers().Leave(id); });
  }
  void OnDone() override { delete this; }

 private:
  void Enter() {
    const auto generation = proxy_.Admit(entry_.request, entry_.request.fence(), token_);
    if (!generation.ok()) {
      Finish(rpc::ToGrpc(generation.status(), v1::ERROR_ORIGIN_WORKER));
      return;
    }
    proxy_.Stamp(entry_.request.mutable_fence());
    const auto& ranks = entry_.request.ranks();
    entry_.local = ranks.empty() ? (*generation)->record().prepare().ranks_size()
                                 : std::count_if(ranks.begin(), ranks.end(), [&](int rank) {
                                     return (*generation)->FindRank(rank) != nullptr;
                                   });
    entry_.done = [this](const grpc::Status& status) { Finish(status); };
    proxy_.barriers().Enter(id_, std::move(entry_));
  }

  StoreProxy& proxy_;
  const uint64_t id_;
  const std::string token_;
  BarrierCalls::Entry entry_;
};

}  // namespace

absl::StatusOr<Generation*> StoreProxy::Admit(const google::protobuf::Message& request,
                                              const v1::Fence& fence, const std::string& token) {
  MESHRUN_RETURN_IF_ERROR(rpc::CheckBounds(request));
  auto generation = generations_.Authenticate(fence, token);
  // The calling rank ran here: if its generation is no longer here, it is over.
  if (absl::IsNotFound(generation.status())) {
    return absl::FailedPreconditionError(generation.status().message());
  }
  return generation;
}

void StoreProxy::Stamp(v1::Fence* fence) const {
  fence->set_node_id(node_id_);
  fence->set_incarnation(incarnation_);
  // Ranks survive a restart of the coordinator: their calls carry no term.
  fence->set_term(0);
}

std::function<void(grpc::Status)> StoreProxy::Heeding(rpc::StubOf<v1::StoreService>::Stub used,
                                                      std::function<void(grpc::Status)> done) {
  return [this, used = std::move(used), done = std::move(done)](const grpc::Status& status) {
    stub_.OnEnd(rpc::FromGrpc(status), used);
    if (status.error_code() != grpc::StatusCode::UNAUTHENTICATED) return done(status);
    done(rpc::ToGrpc(absl::UnavailableError("the coordinator refuses this host's daemon: " +
                                            status.error_message()),
                     v1::ERROR_ORIGIN_WORKER));
  };
}

grpc::ServerUnaryReactor* StoreProxy::EnterBarrier(grpc::CallbackServerContext* context,
                                                   const v1::EnterBarrierRequest* request,
                                                   v1::EnterBarrierResponse*) {
  return new BarrierEntryCall(*this, context, request);
}

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
          const auto stub = stub_.Get();                                                           \
          stub->async()->Method(client, q, r, Heeding(stub, std::move(done)));                     \
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
MESHRUN_FORWARD(PublishUniqueId)
MESHRUN_FORWARD(AwaitUniqueId)
MESHRUN_FORWARD(RegisterGroup)
MESHRUN_FORWARD(GetWorld)
MESHRUN_FORWARD(CommitCheckpoint)
MESHRUN_FORWARD(GetCheckpoint)
MESHRUN_FORWARD(ReportFinished)
MESHRUN_FORWARD(GetFinished)
#undef MESHRUN_FORWARD

}  // namespace meshrun::worker
