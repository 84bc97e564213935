// What a Client asks about nodes, the queue and the cluster.
#include "client/client_impl.h"
#include "core/hash.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

// Calls `page` until it has no more; each one's records come after those before it.
template <typename Response, typename Request, typename Page>
absl::StatusOr<Response> AllRecords(Request request, const Page& page) {
  Response all;
  do {
    Response response;
    MESHRUN_RETURN_IF_ERROR(page(request, &response));
    for (auto& record : *response.mutable_records()) *all.add_records() = std::move(record);
    request.set_after(response.next());
    response.clear_records();
    all.MergeFrom(response);
  } while (request.after() != 0);
  all.clear_next();
  return all;
}

}  // namespace

grpc::Status Client::Impl::Meet(const std::string& address, std::chrono::nanoseconds timeout,
                                const std::stop_token& stop) {
  if (!cluster.choice().HasOthers() || cluster_of_client.Knows(address)) return grpc::Status::OK;
  std::string asked;
  const auto stub = cluster.Get(&asked);
  grpc::ClientContext context;
  rpc::SetTimeout(context, timeout);
  const std::stop_callback cancel(stop, [&] { context.TryCancel(); });
  v1::DescribeClusterRequest request;
  request.set_max_events(1);
  v1::DescribeClusterResponse response;
  const grpc::Status status = rpc::EndOf(stub->DescribeCluster(&context, request, &response),
                                         /*cancelled=*/stop.stop_requested());
  return status.ok() ? Judge(asked, response.cluster_id()) : status;
}

absl::StatusOr<v1::ListUsageResponse> Client::ListUsage(v1::ListUsageRequest request) {
  return AllRecords<v1::ListUsageResponse>(
      std::move(request), [this](const v1::ListUsageRequest& page, v1::ListUsageResponse* out) {
        return impl_->Call(impl_->cluster, &v1::ClusterService::Stub::ListUsage, page, out);
      });
}

absl::StatusOr<v1::ListAuditResponse> Client::ListAudit(v1::ListAuditRequest request) {
  return AllRecords<v1::ListAuditResponse>(
      std::move(request), [this](const v1::ListAuditRequest& page, v1::ListAuditResponse* out) {
        return impl_->Call(impl_->cluster, &v1::ClusterService::Stub::ListAudit, page, out);
      });
}

absl::StatusOr<std::string> Client::Backup(uint64_t* term) {
  std::string address;
  const auto stub = impl_->cluster.Get(&address);
  Attempt attempt;
  if (const grpc::Status met = impl_->Meet(address, impl_->options.timeout); !met.ok()) {
    return impl_->End(impl_->cluster, stub, address, met, &attempt);
  }
  grpc::ClientContext context;
  rpc::SetTimeout(context, std::chrono::minutes(10));
  const auto reader = stub->Backup(&context, v1::BackupRequest());
  std::string file;
  std::string sha256;
  v1::BackupResponse response;
  while (reader->Read(&response)) {
    file += response.data();
    sha256 = response.sha256();
    *term = response.term();
  }
  MESHRUN_RETURN_IF_ERROR(impl_->End(impl_->cluster, stub, address, reader->Finish(), &attempt));
  if (file.empty() || sha256 != Sha256(file))
    return absl::DataLossError("the backup did not arrive as it was sent: make it again");
  return file;
}

absl::StatusOr<std::vector<v1::Node>> Client::ListNodes() {
  constexpr uint32_t kPage = 1000;
  std::vector<v1::Node> nodes;
  v1::ListNodesRequest request;
  request.set_page_size(kPage);
  do {
    v1::ListNodesResponse response;
    MESHRUN_RETURN_IF_ERROR(
        impl_->Call(impl_->cluster, &v1::ClusterService::Stub::ListNodes, request, &response));
    nodes.insert(nodes.end(), std::make_move_iterator(response.mutable_nodes()->begin()),
                 std::make_move_iterator(response.mutable_nodes()->end()));
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return nodes;
}

absl::StatusOr<v1::Job> Client::Signal(const std::string& job_id, int signal,
                                       const std::vector<int>& ranks) {
  v1::SignalJobRequest request;
  request.set_job_id(job_id);
  request.set_signal(signal);
  request.mutable_ranks()->Add(ranks.begin(), ranks.end());
  v1::SignalJobResponse response;
  MESHRUN_RETURN_IF_ERROR(impl_->Call(impl_->jobs, &v1::JobService::Stub::SignalJob, request,
                                      &response, Repeat::kIfNothingWasDone));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::Job> Client::Update(const v1::UpdateJobRequest& request) {
  v1::UpdateJobResponse response;
  MESHRUN_RETURN_IF_ERROR(
      impl_->Call(impl_->jobs, &v1::JobService::Stub::UpdateJob, request, &response));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::DrainNodeResponse> Client::DrainNode(const v1::DrainNodeRequest& request) {
  v1::DrainNodeResponse response;
  MESHRUN_RETURN_IF_ERROR(
      impl_->Call(impl_->cluster, &v1::ClusterService::Stub::DrainNode, request, &response));
  return response;
}

absl::StatusOr<v1::Node> Client::UndrainNode(const std::string& node) {
  v1::UndrainNodeRequest request;
  request.set_node(node);
  v1::UndrainNodeResponse response;
  MESHRUN_RETURN_IF_ERROR(
      impl_->Call(impl_->cluster, &v1::ClusterService::Stub::UndrainNode, request, &response));
  return std::move(*response.mutable_node());
}

absl::StatusOr<v1::Node> Client::RemoveNode(const std::string& node, bool gone) {
  v1::RemoveNodeRequest request;
  request.set_gone(gone);
  request.set_node(node);
  v1::RemoveNodeResponse response;
  MESHRUN_RETURN_IF_ERROR(impl_->Call(impl_->cluster, &v1::ClusterService::Stub::RemoveNode,
                                      request, &response, Repeat::kIfNothingWasDone));
  return std::move(*response.mutable_node());
}

absl::StatusOr<v1::DescribeLimitsResponse> Client::DescribeLimits(const std::string& user) {
  v1::DescribeLimitsRequest request;
  request.set_user(user);
  v1::DescribeLimitsResponse response;
  MESHRUN_RETURN_IF_ERROR(
      impl_->Call(impl_->cluster, &v1::ClusterService::Stub::DescribeLimits, request, &response));
  return response;
}

absl::StatusOr<std::vector<v1::ClusterEvent>> Client::ListEvents(v1::ListEventsRequest request) {
  std::vector<v1::ClusterEvent> events;
  v1::ListEventsResponse response;
  do {
    MESHRUN_RETURN_IF_ERROR(
        impl_->Call(impl_->cluster, &v1::ClusterService::Stub::ListEvents, request, &response));
    for (v1::ClusterEvent& event : *response.mutable_events()) events.push_back(std::move(event));
    if (!events.empty()) request.set_after(events.back().sequence());
  } while (response.more());
  return events;
}

absl::StatusOr<v1::DescribeClusterResponse> Client::DescribeCluster(uint32_t max_events) {
  v1::DescribeClusterRequest request;
  request.set_max_events(max_events);
  v1::DescribeClusterResponse response;
  MESHRUN_RETURN_IF_ERROR(
      impl_->Call(impl_->cluster, &v1::ClusterService::Stub::DescribeCluster, request, &response));
  return response;
}

}  // namespace meshrun::client
