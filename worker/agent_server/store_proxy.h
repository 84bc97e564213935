// StoreService as ranks see it: the caller's token is checked, the daemon's name and incarnation
// are added, and the call is passed on to the coordinator with the caller's deadline. UNAVAILABLE
// is the caller's to retry: it has the request id. The world table is asked for once per
// generation; ranks that enter a barrier together share a call.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/rpc/renewed_channel.h"
#include "meshrun/v1/store_service.grpc.pb.h"
#include "worker/agent_server/barrier_calls.h"
#include "worker/event_loop/event_loop.h"
#include "worker/generations/generations.h"

namespace meshrun::worker {

class StoreProxy : public v1::StoreService::CallbackService {
 public:
  StoreProxy(EventLoop& loop, Generations& generations,
             std::shared_ptr<rpc::RenewedChannel> coordinator, std::string node_id,
             uint64_t incarnation)
      : loop_(loop),
        generations_(generations),
        stub_(std::move(coordinator)),
        node_id_(std::move(node_id)),
        incarnation_(incarnation),
        barriers_(loop, [this](grpc::ClientContext* client, const v1::EnterBarrierRequest* request,
                               v1::EnterBarrierResponse* response,
                               std::function<void(grpc::Status)> done) {
          const auto stub = stub_.Get();
          stub->async()->EnterBarrier(client, request, response, Heeding(stub, std::move(done)));
        }) {}

#define MESHRUN_FORWARDED(Method)                                        \
  grpc::ServerUnaryReactor* Method(grpc::CallbackServerContext* context, \
                                   const v1::Method##Request* request,   \
                                   v1::Method##Response* response) override
  MESHRUN_FORWARDED(SetValues);
  MESHRUN_FORWARDED(GetValues);
  MESHRUN_FORWARDED(WaitKeys);
  MESHRUN_FORWARDED(AddValue);
  MESHRUN_FORWARDED(CompareSetValue);
  MESHRUN_FORWARDED(AppendValue);
  MESHRUN_FORWARDED(DeleteKey);
  MESHRUN_FORWARDED(CountKeys);
  MESHRUN_FORWARDED(EnterBarrier);
  MESHRUN_FORWARDED(PublishUniqueId);
  MESHRUN_FORWARDED(AwaitUniqueId);
  MESHRUN_FORWARDED(RegisterGroup);
  MESHRUN_FORWARDED(GetWorld);
  MESHRUN_FORWARDED(CommitCheckpoint);
  MESHRUN_FORWARDED(GetCheckpoint);
  MESHRUN_FORWARDED(ReportFinished);
  MESHRUN_FORWARDED(GetFinished);
#undef MESHRUN_FORWARDED

  EventLoop& loop() { return loop_; }
  Generations& generations() { return generations_; }
  BarrierCalls& barriers() { return barriers_; }
  // The calling rank's generation. FAILED_PRECONDITION: the generation is over. UNAUTHENTICATED.
  // INVALID_ARGUMENT: the request, which has this fence, is beyond its bounds.
  absl::StatusOr<Generation*> Admit(const google::protobuf::Message& request,
                                    const v1::Fence& fence, const std::string& token);
  // As the coordinator is to see the caller.
  void Stamp(v1::Fence* fence) const;

  // True: the caller fetches the world table, and EndWorld follows. False: `again` is called then.
  // Both on the loop.
  bool BeginWorld(const v1::Fence& fence, EventLoop::Task again);
  void EndWorld(const v1::Fence& fence);

 private:
  // Wraps the `done` of a call over `used` to the coordinator. UNAUTHENTICATED is about this
  // daemon's certificate and not about the rank, so the rank gets UNAVAILABLE and retries.
  std::function<void(grpc::Status)> Heeding(rpc::StubOf<v1::StoreService>::Stub used,
                                            std::function<void(grpc::Status)> done);

  EventLoop& loop_;
  Generations& generations_;
  rpc::StubOf<v1::StoreService> stub_;
  const std::string node_id_;
  const uint64_t incarnation_;
  BarrierCalls barriers_;
  // What waits for the table of a job's generation.
  std::map<std::pair<std::string, uint64_t>, std::vector<EventLoop::Task>> worlds_;
};

}  // namespace meshrun::worker
