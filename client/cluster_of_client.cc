#include "client/cluster_of_client.h"

#include <fmt/format.h>

#include "core/error_detail.h"
#include "core/rpc/status_conversion.h"

namespace meshrun::client {

bool ClusterOfClient::Knows(const std::string& address) const {
  MutexLock lock(mu_);
  return judged_ == address;
}

void ClusterOfClient::BeginWith(const std::string& address, const std::string& id) {
  MutexLock lock(mu_);
  id_ = id;
  judged_ = address;
}

grpc::Status ClusterOfClient::Judge(const std::string& address, const std::string& id) {
  std::string text;
  {
    MutexLock lock(mu_);
    if (id_.empty()) id_ = id;
    if (id.empty() || id == id_) {
      judged_ = address;
      of_other_.clear();
      return grpc::Status::OK;
    }
    text = of_other_ = fmt::format(
        "the coordinator at {} leads cluster {}, and this client began with cluster {}: compare "
        "the --state of the coordinators",
        address, id, id_);
    other_at_ = std::chrono::steady_clock::now();
  }
  absl::Status other = absl::UnavailableError(text);
  v1::ErrorDetail detail;
  detail.set_standby(true);
  SetDetail(&other, detail);
  return rpc::ToGrpc(other, v1::ERROR_ORIGIN_COORDINATOR);
}

std::string ClusterOfClient::OfOther() const {
  MutexLock lock(mu_);
  return std::chrono::steady_clock::now() - other_at_ < kRecent ? of_other_ : "";
}

}  // namespace meshrun::client
