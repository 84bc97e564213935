#include "coordinator/services/cluster_service.h"

#include "coordinator/services/backup_call.h"

namespace meshrun::coordinator {
namespace {

class DescribeCall : public UnaryCall<v1::DescribeClusterResponse> {
 public:
  using UnaryCall::UnaryCall;

 private:
  // The state machine knows nothing of disks.
  void BeforeFinish(v1::DescribeClusterResponse& response) override {
    response.set_read_only_reason(shell().loop.read_only_reason());
  }
};

}  // namespace

MESHRUN_POST_UNARY(ClusterService, ListNodes, list_nodes)

grpc::ServerUnaryReactor* ClusterService::DescribeCluster(grpc::CallbackServerContext* context,
                                                          const v1::DescribeClusterRequest* request,
                                                          v1::DescribeClusterResponse* response) {
  return PostUnary<&v1::StateEvent::mutable_describe_cluster, DescribeCall>(shell_, *context,
                                                                            *request, response);
}

grpc::ServerWriteReactor<v1::BackupResponse>* ClusterService::Backup(
    grpc::CallbackServerContext* context, const v1::BackupRequest* request) {
  return BeginBackup(shell_, *context, *request);
}

MESHRUN_POST_UNARY(ClusterService, ListEvents, list_events)
MESHRUN_POST_UNARY(ClusterService, DrainNode, drain_node)
MESHRUN_POST_UNARY(ClusterService, UndrainNode, undrain_node)
MESHRUN_POST_UNARY(ClusterService, RemoveNode, remove_node)
MESHRUN_POST_UNARY(ClusterService, DescribeLimits, describe_limits)
MESHRUN_POST_UNARY(ClusterService, ListUsage, list_usage)
MESHRUN_POST_UNARY(ClusterService, ListAudit, list_audit)

}  // namespace meshrun::coordinator
