#include "agent/daemon_agent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "agent/deadlines.h"
#include "core/mesh_messages.h"
#include "core/rpc/channel.h"
#include "core/status.h"

namespace meshrun::agent {

absl::StatusOr<std::unique_ptr<Agent>> DaemonAgent::Connect(const AgentEnvironment& environment,
                                                            Milliseconds timeout, bool in_process,
                                                            std::shared_ptr<Totals> totals) {
  MESHRUN_ASSIGN_OR_RETURN(const auto channel, rpc::MakeChannel("agent", environment.address, {}));
  if (totals == nullptr) totals = std::make_shared<Totals>();
  std::unique_ptr<DaemonAgent> agent(new DaemonAgent(environment, channel, std::move(totals)));
  MESHRUN_RETURN_IF_ERROR(agent->Register(timeout, in_process));
  return agent;
}

DaemonAgent::DaemonAgent(const AgentEnvironment& environment,
                         const std::shared_ptr<grpc::Channel>& channel,
                         std::shared_ptr<Totals> totals)
    : environment_(environment),
      agent_(v1::AgentService::NewStub(channel)),
      store_(v1::StoreService::NewStub(channel)),
      reports_(environment.report_socket),
      totals_(std::move(totals)),
      calls_(fmt::format("the worker daemon at {}", environment.address), environment.token) {}

DaemonAgent::~DaemonAgent() {
  if (::getpid() != process_) {
    // The connection and the threads are the parent's: never released here.
    static_cast<void>(agent_.release());
    static_cast<void>(store_.release());
    new std::vector<std::thread>(std::move(watchers_));
    return;
  }
  calls_.CancelAll();
  std::vector<std::thread> watchers;
  {
    MutexLock lock(mu_);
    EndCollectives();
    watchers.swap(watchers_);
  }
  for (std::thread& watcher : watchers) watcher.join();
}

v1::Fence DaemonAgent::Fence() const {
  v1::Fence fence;
  fence.set_job_id(environment_.job_id);
  fence.set_generation(environment_.generation);
  return fence;
}

absl::Status DaemonAgent::Register(Milliseconds timeout, bool in_process) {
  auto request = NewRequest<v1::RegisterRankRequest>();
  request.set_in_process(in_process);
  request.set_pid(::getpid());
  v1::RegisterRankResponse response;
  MESHRUN_RETURN_IF_ERROR(calls_.Run(After(timeout), [&](grpc::ClientContext& context, auto) {
    return agent_->RegisterRank(&context, request, &response);
  }));
  assignment_ = {.job_id = environment_.job_id,
                 .generation = environment_.generation,
                 .rank = response.assignment().rank(),
                 .world_size = response.world_size(),
                 .local_rank = response.assignment().local_rank(),
                 .local_world_size = response.local_world_size(),
                 .node_rank = response.assignment().node_rank(),
                 .node_count = response.node_count(),
                 .node_name = response.node_name(),
                 .master_addr = response.master_addr(),
                 .master_port = static_cast<int>(response.master_port())};
  assignment_.mesh = AxesOf(response.mesh());
  return absl::OkStatus();
}

}  // namespace meshrun::agent
