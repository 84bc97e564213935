// What a client says of an error.
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "client/client_impl.h"
#include "core/error_detail.h"
#include "core/rpc/status_conversion.h"

namespace meshrun::client {
namespace {

constexpr std::string_view kNameAnother =
    "or name another with --coordinator or MESHRUN_COORDINATOR";

// `part`: in lower case.
bool Has(std::string_view reason, std::string_view part) {
  return absl::AsciiStrToLower(std::string(reason)).find(part) != std::string::npos;
}

}  // namespace

absl::Status Client::Impl::NoCoordinator(const std::string& where, std::string_view reason) {
  if (Has(reason, "certificate verify failed") || Has(reason, "hostname verification")) {
    return absl::UnavailableError(fmt::format(
        "what runs at {} showed a certificate that is not trusted ({}): 'meshrun doctor' looks at "
        "the certificates, {}",
        where, reason, kNameAnother));
  }
  if (Has(reason, "alpn")) {
    return absl::UnavailableError(
        fmt::format("what runs at {} speaks no gRPC ({}): is it the HTTP port? Name the address "
                    "of the coordinator's --listen",
                    where, reason));
  }
  // Over TLS an answer that says why needs a connection first.
  return absl::UnavailableError(fmt::format(
      "no coordinator is running at {} ({}): {}, {}", where, reason,
      where.starts_with("unix:")       ? "start one with 'meshrun dev up'"
      : reason == "connection refused" ? "start meshrun-coordinator there"
                                       : "if it is, 'meshrun doctor' looks at the certificates",
      kNameAnother));
}

absl::Status Client::Impl::Explain(const grpc::Status& status) {
  // What a standby says is more than that others are not reached.
  const bool is_away = rpc::OriginOf(status) == v1::ERROR_ORIGIN_UNSPECIFIED &&
                       (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                        status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  const grpc::Status standby = is_away ? reached.Standby() : grpc::Status::OK;
  const absl::Status said = rpc::FromGrpc(standby.ok() ? status : standby);
  if (const v1::ErrorDetail detail = DetailOf(said); detail.standby()) {
    std::string text = fmt::format("no coordinator that leads was found at {}: {}", where,
                                   std::string(said.message()));
    const std::string why_not = reached.WhyNot(detail.leader());
    if (!why_not.empty()) text += fmt::format(", and is not reached there: {}", why_not);
    const std::string other = cluster_of_client.OfOther();
    if (said.message() != other && !other.empty()) text += "; " + other;
    absl::Status none = absl::UnavailableError(text);
    SetDetail(&none, detail);
    return none;
  }
  // The coordinator's own errors are passed on unchanged; the others were made by gRPC.
  if (status.ok() || rpc::OriginOf(status) != v1::ERROR_ORIGIN_UNSPECIFIED) return said;
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    const std::string reason = ShortReason(status.error_message());
    std::string each;
    bool differ = false;
    for (const std::string& address : jobs.choice().given()) {
      const std::string why_not = reached.WhyNot(address);
      if (why_not.empty()) continue;
      each += fmt::format("{}{} ({})", each.empty() ? "" : ", ", address, why_not);
      differ |= why_not != reason;
    }
    if (!differ) return NoCoordinator(where, reason);
    return absl::UnavailableError(
        fmt::format("no coordinator was reached: {}: 'meshrun doctor --coordinator ADDRESS' looks "
                    "at each of them, {}",
                    each, kNameAnother));
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(
        fmt::format("the coordinator at {} did not answer in time: see whether its host is up and "
                    "the address is "
                    "right ('meshrun doctor' checks both)",
                    where));
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::UnavailableError(
        fmt::format("what answers at {} does not know this call: it is not a meshrun coordinator, "
                    "or one of another version",
                    where));
  }
  return rpc::FromGrpc(status);
}

}  // namespace meshrun::client
