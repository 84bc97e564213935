#include "client/reached_addresses.h"

#include <cctype>

#include "core/error_detail.h"
#include "core/rpc/status_conversion.h"

namespace meshrun::client {

std::string ShortReason(const std::string& text) {
  const size_t at = text.rfind(": ");
  std::string reason = at == std::string::npos ? text : text.substr(at + 2);
  if (!reason.empty() && reason.size() > 1 && std::islower(static_cast<unsigned char>(reason[1]))) {
    reason[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(reason[0])));
  }
  return reason;
}

void ReachedAddresses::OnEnd(const std::string& address, const grpc::Status& status) {
  const v1::ErrorDetail detail = DetailOf(rpc::FromGrpc(status));
  const bool by_grpc = !status.ok() && detail.origin() == v1::ERROR_ORIGIN_UNSPECIFIED;
  MutexLock lock(mu_);
  if (by_grpc) {
    const bool is_away = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    if (!is_away) return;
    if (why_not_.size() >= kMost) why_not_.clear();
    std::string& why = why_not_[address];
    // A time that runs out says less than an attempt that failed before.
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      why = ShortReason(status.error_message());
    } else if (why.empty()) {
      why = "no answer in time";
    }
    return;
  }
  why_not_.erase(address);
  if (detail.standby()) {
    standby_ = status;
    heard_at_ = std::chrono::steady_clock::now();
  } else {
    standby_ = grpc::Status::OK;
    why_not_.clear();
  }
}

std::string ReachedAddresses::WhyNot(const std::string& address) const {
  MutexLock lock(mu_);
  const auto found = why_not_.find(address);
  return found == why_not_.end() ? "" : found->second;
}

grpc::Status ReachedAddresses::Standby() const {
  MutexLock lock(mu_);
  const bool is_recent = std::chrono::steady_clock::now() - heard_at_ < kRecent;
  return is_recent ? standby_ : grpc::Status::OK;
}

}  // namespace meshrun::client
