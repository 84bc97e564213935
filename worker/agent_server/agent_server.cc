#include "worker/agent_server/agent_server.h"

#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>

#include <chrono>
#include <optional>
#include <utility>

#include "core/rpc/channel.h"
#include "core/status.h"
#include "worker/agent_server/agent_service.h"
#include "worker/agent_server/store_proxy.h"

namespace meshrun::worker {

AgentServer::AgentServer(EventLoop& loop, Generations& generations,
                         std::shared_ptr<rpc::RenewedChannel> coordinator,
                         const std::string& node_id, uint64_t incarnation)
    : agent_service_(
          std::make_unique<AgentService>(loop, generations, coordinator, node_id, incarnation)),
      store_proxy_(std::make_unique<StoreProxy>(loop, generations, std::move(coordinator), node_id,
                                                incarnation)) {}

AgentServer::~AgentServer() { Stop(); }

absl::Status AgentServer::Start() {
  grpc::ServerBuilder builder;
  rpc::ConfigureServer(builder, std::nullopt);
  builder.RegisterService(agent_service_.get());
  builder.RegisterService(store_proxy_.get());
  server_ = builder.BuildAndStart();
  return server_ == nullptr ? absl::InternalError("gRPC cannot start the agents' server")
                            : absl::OkStatus();
}

void AgentServer::Serve(os::UniqueFd connection) {
  MutexLock lock(mu_);
  if (!stopped_) grpc::AddInsecureChannelFromFd(server_.get(), connection.release());
}

void AgentServer::Stop() {
  {
    MutexLock lock(mu_);
    if (server_ == nullptr || std::exchange(stopped_, true)) return;
  }
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

}  // namespace meshrun::worker
