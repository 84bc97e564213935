// ClusterService: nodes, and the coordinator about itself.
#pragma once

#include "coordinator/services/shell.h"
#include "meshrun/v1/cluster_service.grpc.pb.h"

namespace meshrun::coordinator {

class ClusterService : public v1::ClusterService::CallbackService {
 public:
  explicit ClusterService(Shell shell) : shell_(shell) {}

  grpc::ServerUnaryReactor* ListNodes(grpc::CallbackServerContext*, const v1::ListNodesRequest*,
                                      v1::ListNodesResponse*) override;
  grpc::ServerUnaryReactor* DescribeCluster(grpc::CallbackServerContext*,
                                            const v1::DescribeClusterRequest*,
                                            v1::DescribeClusterResponse*) override;

 private:
  Shell shell_;
};

}  // namespace meshrun::coordinator
