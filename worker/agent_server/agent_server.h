// What the ranks of this host reach at MESHRUN_AGENT: AgentService, answered from the daemon's own
// state, and StoreService, passed on to the coordinator. Every call shows the generation's token.
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
  // `generations` is asked on `loop` alone; both outlive the server, and the loop runs until Stop
  // returned. `coordinator` is a channel of its own, so that no value waits before a heartbeat.
  AgentServer(EventLoop& loop, Generations& generations, std::shared_ptr<grpc::Channel> coordinator,
              const std::string& node_id, uint64_t incarnation);
  ~AgentServer();

  // Serves on a Unix socket that only this user can open. Errors: the socket's path.
  absl::Status Start(const std::string& socket_path);
  // Cancels what is under way and waits for it. Not from the loop's thread.
  void Stop();

 private:
  std::unique_ptr<grpc::Service> agent_service_;
  std::unique_ptr<grpc::Service> store_proxy_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace meshrun::worker
