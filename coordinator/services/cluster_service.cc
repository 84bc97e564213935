#include "coordinator/services/cluster_service.h"

#include "coordinator/services/backup_call.h"
#include "core/utf8.h"

namespace meshrun::coordinator {
namespace {

class DescribeCall : public UnaryCall<v1::DescribeClusterResponse> {
 public:
  using UnaryCall::UnaryCall;

 private:
  // The state machine knows nothing of disks, and nothing of other coordinators.
  void BeforeFinish(v1::DescribeClusterResponse& response) override {
    response.set_read_only_reason(shell().loop.read_only_reason());
    // A path of other bytes cannot be said: it is found beside the gRPC socket.
    if (const std::string* const http = shell().http_address;
        http != nullptr && ReplaceBytes(*http) == *http) {
      response.set_http_address(*http);
    }
    response.set_state_engine(std::string(shell().state_engine));
    for (const Leadership::Candidate& one : shell().leadership->Candidates()) {
      v1::Coordinator& coordinator = *response.add_coordinators();
      coordinator.set_name(one.name);
      coordinator.set_address(one.address);
      coordinator.set_leads(one.leads);
    }
  }
};

}  // namespace

MESHRUN_POST_UNARY_OF_ANY(ClusterService, ListNodes, list_nodes)

grpc::ServerUnaryReactor* ClusterService::DescribeCluster(const Sender& sender,
                                                          const v1::DescribeClusterRequest& request,
                                                          v1::DescribeClusterResponse* response) {
  return PostUnary<&v1::StateEvent::mutable_describe_cluster, DescribeCall>(shell_, sender, request,
                                                                            response);
}

grpc::ServerUnaryReactor* ClusterService::DescribeCluster(grpc::CallbackServerContext* context,
                                                          const v1::DescribeClusterRequest* request,
                                                          v1::DescribeClusterResponse* response) {
  return DescribeCluster(SenderOf(*context), *request, response);
}

grpc::ServerWriteReactor<v1::BackupResponse>* ClusterService::Backup(
    grpc::CallbackServerContext* context, const v1::BackupRequest* request) {
  return BeginBackup(shell_, SenderOf(*context), *request);
}

MESHRUN_POST_UNARY_OF_ANY(ClusterService, ListEvents, list_events)
MESHRUN_POST_UNARY_OF_ANY(ClusterService, DrainNode, drain_node)
MESHRUN_POST_UNARY_OF_ANY(ClusterService, UndrainNode, undrain_node)
MESHRUN_POST_UNARY(ClusterService, RemoveNode, remove_node)
MESHRUN_POST_UNARY_OF_ANY(ClusterService, DescribeLimits, describe_limits)
MESHRUN_POST_UNARY_OF_ANY(ClusterService, ListUsage, list_usage)
MESHRUN_POST_UNARY(ClusterService, ListAudit, list_audit)

}  // namespace meshrun::coordinator
