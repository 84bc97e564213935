#include "coordinator/services/cluster_service.h"

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

grpc::ServerUnaryReactor* ClusterService::ListNodes(grpc::CallbackServerContext* context,
                                                    const v1::ListNodesRequest* request,
                                                    v1::ListNodesResponse* response) {
  v1::StateEvent event;
  *event.mutable_list_nodes() = *request;
  return (new UnaryCall<v1::ListNodesResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* ClusterService::DescribeCluster(grpc::CallbackServerContext* context,
                                                          const v1::DescribeClusterRequest* request,
                                                          v1::DescribeClusterResponse* response) {
  v1::StateEvent event;
  *event.mutable_describe_cluster() = *request;
  return (new DescribeCall(shell_, response))->Begin(*context, std::move(event));
}

}  // namespace meshrun::coordinator
