// The server that ranks of this host reach at MESHRUN_AGENT: it answers AgentService from the
// daemon's own state, and passes StoreService on to the coordinator. Every call carries the
// generation's token.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/server.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "worker/event_loop/event_loop.h"
#include "worker/generations/generations.h"

namespace meshrun::worker {

class AgentServer {
 public:
  // `generations` is used only on `loop`; both outlive the server, and the loop runs until Stop has
  // returned. `coordinator` is a separate channel, so that large values do not delay heartbeats.
  AgentServer(EventLoop& loop, Generations& generations, std::shared_ptr<grpc::Channel> coordinator,
              const std::string& node_id, uint64_t incarnation);
  ~AgentServer();

  // Serves on a Unix socket that only this user can open. Errors: the socket's path.
  absl::Status Start(const std::string& socket_path);
  // Cancels all calls under way and waits for them. Not from the loop's thread.
  void Stop();

 private:
  std::unique_ptr<grpc::Service> agent_service_;
  std::unique_ptr<grpc::Service> store_proxy_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace meshrun::worker
