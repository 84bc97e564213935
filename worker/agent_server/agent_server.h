// The server that ranks of this host reach at MESHRUN_AGENT: it answers AgentService from the
// daemon's own state, and passes StoreService on to the coordinator. Every call carries the
// generation's token. Health and reflection are answered too. It listens nowhere itself:
// connections come from AgentSockets.
#pragma once

#include <grpcpp/server.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "core/mutex.h"
#include "core/os/fd.h"
#include "core/rpc/renewed_channel.h"
#include "worker/event_loop/event_loop.h"
#include "worker/generations/generations.h"

namespace meshrun::worker {

class AgentServer {
 public:
  // `generations` is used only on `loop`; both outlive the server, and the loop runs until Stop has
  // returned. `coordinator` is a separate channel, so that large values do not delay heartbeats.
  AgentServer(EventLoop& loop, Generations& generations,
              std::shared_ptr<rpc::RenewedChannel> coordinator, const std::string& node_id,
              uint64_t incarnation);
  ~AgentServer();

  // INTERNAL where gRPC does not start.
  absl::Status Start();
  // Answers on a connected socket until its peer closes it, or Stop; closes it after Stop.
  void Serve(os::UniqueFd connection) MESHRUN_EXCLUDES(mu_);
  // Once started.
  grpc::Server& server() { return *server_; }
  // Cancels all calls under way and waits for them. Not from the loop's thread. Idempotent.
  void Stop() MESHRUN_EXCLUDES(mu_);

 private:
  std::unique_ptr<grpc::Service> agent_service_;
  std::unique_ptr<grpc::Service> store_proxy_;
  // Stays after Stop: Serve may be on its way.
  std::unique_ptr<grpc::Server> server_;
  Mutex mu_;
  bool stopped_ MESHRUN_GUARDED_BY(mu_) = false;
};

}  // namespace meshrun::worker
