#include "worker/agent_server/agent_server.h"

#include <fmt/format.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <sys/stat.h>

#include <chrono>
#include <optional>

#include "core/os/files.h"
#include "core/rpc/channel.h"
#include "core/status.h"
#include "worker/agent_server/agent_service.h"
#include "worker/agent_server/store_proxy.h"

namespace meshrun::worker {

AgentServer::AgentServer(EventLoop& loop, Generations& generations,
                         std::shared_ptr<grpc::Channel> coordinator, const std::string& node_id,
                         uint64_t incarnation)
    : agent_service_(
          std::make_unique<AgentService>(loop, generations, coordinator, node_id, incarnation)),
      store_proxy_(std::make_unique<StoreProxy>(loop, generations, std::move(coordinator), node_id,
                                                incarnation)) {}

AgentServer::~AgentServer() { Stop(); }

absl::Status AgentServer::Start(const std::string& socket_path) {
  MESHRUN_RETURN_IF_ERROR(os::CheckSocketPath(socket_path));
  grpc::ServerBuilder builder;
  rpc::ConfigureServer(builder, std::nullopt);
  builder.AddListeningPort("unix:" + socket_path, grpc::InsecureServerCredentials());
  builder.RegisterService(agent_service_.get());
  builder.RegisterService(store_proxy_.get());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr)
    return absl::InternalError(fmt::format("cannot listen on {}", socket_path));
  if (::chmod(socket_path.c_str(), 0600) != 0) return os::ErrnoStatus(errno, socket_path);
  return absl::OkStatus();
}

void AgentServer::Stop() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

}  // namespace meshrun::worker
