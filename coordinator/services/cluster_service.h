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
  grpc::ServerUnaryReactor* ListEvents(grpc::CallbackServerContext*, const v1::ListEventsRequest*,
                                       v1::ListEventsResponse*) override;
  grpc::ServerUnaryReactor* DrainNode(grpc::CallbackServerContext*, const v1::DrainNodeRequest*,
                                      v1::DrainNodeResponse*) override;
  grpc::ServerUnaryReactor* UndrainNode(grpc::CallbackServerContext*, const v1::UndrainNodeRequest*,
                                        v1::UndrainNodeResponse*) override;
  grpc::ServerUnaryReactor* RemoveNode(grpc::CallbackServerContext*, const v1::RemoveNodeRequest*,
                                       v1::RemoveNodeResponse*) override;
  grpc::ServerWriteReactor<v1::BackupResponse>* Backup(grpc::CallbackServerContext*,
                                                       const v1::BackupRequest*) override;
  grpc::ServerUnaryReactor* ListUsage(grpc::CallbackServerContext*, const v1::ListUsageRequest*,
                                      v1::ListUsageResponse*) override;
  grpc::ServerUnaryReactor* ListAudit(grpc::CallbackServerContext*, const v1::ListAuditRequest*,
                                      v1::ListAuditResponse*) override;
  grpc::ServerUnaryReactor* DescribeLimits(grpc::CallbackServerContext*,
                                           const v1::DescribeLimitsRequest*,
                                           v1::DescribeLimitsResponse*) override;

  // The same calls over the HTTP API.
  grpc::ServerUnaryReactor* ListNodes(const Sender&, const v1::ListNodesRequest&,
                                      v1::ListNodesResponse*);
  grpc::ServerUnaryReactor* DescribeCluster(const Sender&, const v1::DescribeClusterRequest&,
                                            v1::DescribeClusterResponse*);
  grpc::ServerUnaryReactor* ListEvents(const Sender&, const v1::ListEventsRequest&,
                                       v1::ListEventsResponse*);
  grpc::ServerUnaryReactor* DrainNode(const Sender&, const v1::DrainNodeRequest&,
                                      v1::DrainNodeResponse*);
  grpc::ServerUnaryReactor* UndrainNode(const Sender&, const v1::UndrainNodeRequest&,
                                        v1::UndrainNodeResponse*);
  grpc::ServerUnaryReactor* ListUsage(const Sender&, const v1::ListUsageRequest&,
                                      v1::ListUsageResponse*);
  grpc::ServerUnaryReactor* DescribeLimits(const Sender&, const v1::DescribeLimitsRequest&,
                                           v1::DescribeLimitsResponse*);

 private:
  Shell shell_;
};

}  // namespace meshrun::coordinator
