#include "worker/coordinators.h"

#include <fmt/format.h>

#include "core/certificates/certificate.h"
#include "core/log.h"
#include "core/rpc/channel.h"
#include "core/rpc/unix_socket.h"
#include "core/status.h"
#include "worker/host_address.h"

namespace meshrun::worker {
namespace {

constexpr char kRole[] = "meshrun-worker";

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseCoordinators(const std::string& list,
                                                           const rpc::Security& security) {
  std::vector<std::string> coordinators = rpc::SplitAddresses(list);
  for (const std::string& address : coordinators) {
    if (address.empty()) {
      return absl::InvalidArgumentError(
          fmt::format("--coordinator {}: an address of the list is empty", list));
    }
    if (!rpc::UnixPath(address) && address.find(';') != std::string::npos) {
      return absl::InvalidArgumentError(
          fmt::format("--coordinator {}: write several addresses with commas, not with ';'", list));
    }
    MESHRUN_RETURN_IF_ERROR(rpc::CheckSecurity(kRole, address, security));
    const std::string warning = rpc::InsecureWarning(address, security);
    if (!warning.empty()) log::Warning(warning);
  }
  return coordinators;
}

absl::Status MakeSocketDirectories(const std::vector<std::string>& coordinators) {
  for (const std::string& address : coordinators) {
    if (const auto path = rpc::UnixPath(address)) {
      MESHRUN_RETURN_IF_ERROR(rpc::MakeSocketDirectory(*path));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> OwnAddressesOf(
    const std::vector<std::string>& coordinators) {
  absl::StatusOr<std::vector<std::string>> first;
  for (const std::string& coordinator : coordinators) {
    auto addresses = OwnAddresses(coordinator);
    if (addresses.ok()) return addresses;
    if (&coordinator == &coordinators.front()) first = addresses;
  }
  return first;
}

absl::StatusOr<Channels> MakeChannels(const std::vector<std::string>& coordinators,
                                      const rpc::Security& security, rpc::RenewedChannel::Run run) {
  const auto choice = std::make_shared<rpc::LeaderChoice>(coordinators);
  Channels channels;
  for (auto& channel : channels) {
    MESHRUN_ASSIGN_OR_RETURN(
        channel, rpc::RenewedChannel::Create(
                     {.choice = choice,
                      .chooses = &channel == &channels.front(),
                      .make = [security](const std::string& address)
                          -> absl::StatusOr<std::shared_ptr<grpc::Channel>> {
                        const rpc::TlsFiles& tls = security.tls;
                        if (!tls.empty())
                          MESHRUN_RETURN_IF_ERROR(certificates::CheckPair(tls.cert, tls.key));
                        return rpc::MakeChannel(kRole, address, security);
                      },
                      .run = run}));
  }
  return channels;
}

}  // namespace meshrun::worker
