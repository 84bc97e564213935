// AgentService of this host's daemon: ranks register, report, and are told news.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "core/rpc/renewed_channel.h"
#include "meshrun/v1/agent_service.grpc.pb.h"
#include "meshrun/v1/session.grpc.pb.h"
#include "worker/event_loop/event_loop.h"
#include "worker/generations/generations.h"

namespace meshrun::worker {

class AgentService : public v1::AgentService::CallbackService {
 public:
  AgentService(EventLoop& loop, Generations& generations,
               std::shared_ptr<rpc::RenewedChannel> coordinator, std::string node_id,
               uint64_t incarnation)
      : loop_(loop),
        generations_(generations),
        coordinator_(std::move(coordinator)),
        node_id_(std::move(node_id)),
        incarnation_(incarnation) {}

  grpc::ServerUnaryReactor* RegisterRank(grpc::CallbackServerContext* context,
                                         const v1::RegisterRankRequest* request,
                                         v1::RegisterRankResponse* response) override;
  grpc::ServerUnaryReactor* ReportProgress(grpc::CallbackServerContext* context,
                                           const v1::ReportProgressRequest* request,
                                           v1::ReportProgressResponse* response) override;
  grpc::ServerUnaryReactor* ReportWait(grpc::CallbackServerContext* context,
                                       const v1::ReportWaitRequest* request,
                                       v1::ReportWaitResponse* response) override;
  grpc::ServerUnaryReactor* WithdrawWait(grpc::CallbackServerContext* context,
                                         const v1::WithdrawWaitRequest* request,
                                         v1::WithdrawWaitResponse* response) override;
  grpc::ServerUnaryReactor* ReportQuiesced(grpc::CallbackServerContext* context,
                                           const v1::ReportQuiescedRequest* request,
                                           v1::ReportQuiescedResponse* response) override;
  grpc::ServerUnaryReactor* UploadFlightRecord(grpc::CallbackServerContext* context,
                                               const v1::UploadFlightRecordRequest* request,
                                               v1::UploadFlightRecordResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchGenerationResponse>* WatchGeneration(
      grpc::CallbackServerContext* context, const v1::WatchGenerationRequest* request) override;

 private:
  EventLoop& loop_;
  Generations& generations_;
  rpc::StubOf<v1::SessionService> coordinator_;
  const std::string node_id_;
  const uint64_t incarnation_;
};

}  // namespace meshrun::worker
