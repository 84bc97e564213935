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

grpc::ServerUnaryReactor* ClusterService::ListEvents(grpc::CallbackServerContext* context,
                                                     const v1::ListEventsRequest* request,
                                                     v1::ListEventsResponse* response) {
  v1::StateEvent event;
  *event.mutable_list_events() = *request;
  return (new UnaryCall<v1::ListEventsResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* ClusterService::DrainNode(grpc::CallbackServerContext* context,
                                                    const v1::DrainNodeRequest* request,
                                                    v1::DrainNodeResponse* response) {
  v1::StateEvent event;
  *event.mutable_drain_node() = *request;
  return (new UnaryCall<v1::DrainNodeResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* ClusterService::UndrainNode(grpc::CallbackServerContext* context,
                                                      const v1::UndrainNodeRequest* request,
                                                      v1::UndrainNodeResponse* response) {
  v1::StateEvent event;
  *event.mutable_undrain_node() = *request;
  return (new UnaryCall<v1::UndrainNodeResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* ClusterService::RemoveNode(grpc::CallbackServerContext* context,
                                                     const v1::RemoveNodeRequest* request,
                                                     v1::RemoveNodeResponse* response) {
  v1::StateEvent event;
  *event.mutable_remove_node() = *request;
  return (new UnaryCall<v1::RemoveNodeResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

}  // namespace meshrun::coordinator
