#include "coordinator/door.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "coordinator/own_certificate.h"
#include "core/certificates/certificate.h"
#include "core/log.h"
#include "core/rpc/caller.h"
#include "core/rpc/channel.h"
#include "core/rpc/default_address.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

// Most requests fit; a larger one costs a round trip more.
constexpr int kWindowBytes = 4096;
// For TLS and HTTP/2's first frames together.
constexpr int kHandshakeMs = 10'000;

absl::Status Admit(CallGate& gate, const rpc::Identity& caller, std::string_view method, bool reads,
                   const absl::Status& allowed) {
  if (!allowed.ok()) {
    gate.OnDenied(caller);
    return allowed;
  }
  // Health checks are read by gRPC itself. A worker's session and its logs come in pieces, and a
  // node whose ranks have called too much must not be lost for it.
  const bool is_whole = reads && method.starts_with("/meshrun.v1.") &&
                        !method.ends_with("/OpenSession") && !method.ends_with("/UploadLog");
  return is_whole ? gate.Admit(caller) : gate.AdmitUnseen(caller);
}

absl::StatusOr<std::shared_ptr<certificates::Standing>> StandingOf(const rpc::Security& security) {
  const rpc::TlsFiles& tls = security.tls;
  if (tls.empty()) return nullptr;
  MESHRUN_RETURN_IF_ERROR(certificates::CheckPair(tls.cert, tls.key));
  return certificates::Standing::Start(
      {.deny_file = security.deny_file,
       .on_problem = [](const std::string& text) { log::Error(text); },
       .on_list =
           [](const certificates::DenyList& list) {
             log::Info("the deny list was read",
                       {{"serials", list.serials.size()}, {"names", list.names.size()}});
           }});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Door>> Door::Open(Options options) {
  MESHRUN_ASSIGN_OR_RETURN(std::shared_ptr<certificates::Standing> standing,
                           StandingOf(options.security));
  if (options.listen.empty()) {
    MESHRUN_ASSIGN_OR_RETURN(options.listen, rpc::DefaultListenAddress());
  }
  MESHRUN_RETURN_IF_ERROR(CheckServes(options.security, options.listen));
  const std::optional<std::string> unix_path = rpc::UnixPath(options.listen);
  std::unique_ptr<rpc::Acceptor> acceptor;
  if (!unix_path) {
    if (options.listen.find(':') == std::string::npos) {
      return absl::InvalidArgumentError(fmt::format(
          "'{}' is neither unix:PATH nor HOST:PORT: write for example --listen 0.0.0.0:7480",
          options.listen));
    }
    MESHRUN_ASSIGN_OR_RETURN(acceptor, rpc::Acceptor::Listen(options.listen, options.connections));
  }
  std::unique_ptr<Door> door(
      new Door(std::move(options), std::move(standing), std::move(acceptor)));
  // gRPC would replace a socket at which another process listens.
  if (unix_path) {
    MESHRUN_ASSIGN_OR_RETURN(door->claim_, rpc::SocketClaim::Take(*unix_path));
  }
  return door;
}

Door::Door(Options options, std::shared_ptr<certificates::Standing> standing,
           std::unique_ptr<rpc::Acceptor> acceptor)
    : options_(std::move(options)),
      address_(options_.listen),
      standing_(std::move(standing)),
      acceptor_(std::move(acceptor)),
      gate_(std::make_shared<CallGate>(CallGate::Limits(), *options_.clock,
                                       [acceptor = acceptor_](const std::string& name) {
                                         if (acceptor != nullptr) acceptor->CloseBusiest(name);
                                       })) {
  if (acceptor_ != nullptr) {
    address_ = fmt::format("{}:{}", address_.substr(0, address_.rfind(':')), acceptor_->port());
  }
}

bool Door::KnowsCallers() const { return !options_.security.tls.empty() && acceptor_ != nullptr; }

rpc::CallAdmission Door::Admission(bool reads, OnRefused on_refused) const {
  return [gate = gate_, standing = standing_, reads, on_refused = std::move(on_refused)](
             const rpc::Identity& caller, std::string_view pem, std::string_view method,
             const absl::Status& allowed) {
    absl::Status status = Admit(*gate, caller, method, reads, allowed);
    if (status.ok() || on_refused == nullptr) return status;
    v1::Caller who;
    who.set_user(caller.name);
    if (standing != nullptr) who.set_certificate(standing->Read(pem).serial);
    for (const std::string& node : caller.nodes) who.add_nodes(node);
    on_refused(who, method, status);
    return status;
  };
}

absl::Status Door::Serve(grpc::ServerBuilder& builder, bool reads, OnRefused on_refused) {
  rpc::CertificateCheck stands;
  if (standing_ != nullptr) {
    stands = [standing = standing_, grace = options_.security.certificate_grace](
                 std::string_view pem, std::string_view method) {
      return standing->Check(pem, rpc::IsForNodes(method) ? grace : WallNanos(0));
    };
  }
  MESHRUN_ASSIGN_OR_RETURN(
      auto credentials,
      rpc::ServerCredentials("meshrun-coordinator", options_.listen, options_.security,
                             std::move(stands), Admission(reads, std::move(on_refused))));
  rpc::EnableServerPlugins();
  rpc::ConfigureServer(builder);
  if (acceptor_ == nullptr) {
    unix_socket_ = 1;
    builder.AddListeningPort(rpc::GrpcTarget(options_.listen), credentials, &unix_socket_);
    return absl::OkStatus();
  }
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  // What a peer may send before the call has been let in. gRPC would let peers that send fast
  // have megabytes for each of their streams.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  acceptor_->Serve(builder, credentials);
  return absl::OkStatus();
}

absl::Status Door::Begin(const grpc::Server* server) {
  if (server == nullptr || unix_socket_ == 0) {
    return absl::AlreadyExistsError(
        fmt::format("cannot listen on {}: choose another --listen", options_.listen));
  }
  if (acceptor_ != nullptr) acceptor_->Start();
  return absl::OkStatus();
}

void Door::End() {
  if (acceptor_ != nullptr) acceptor_->Stop();
}

}  // namespace meshrun::coordinator
