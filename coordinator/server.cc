#include "coordinator/server.h"

#include <fmt/format.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <optional>
#include <utility>

#include "coordinator/event_loop/event_loop.h"
#include "coordinator/services/cluster_service.h"
#include "coordinator/services/job_service.h"
#include "coordinator/services/log_relay.h"
#include "coordinator/services/refused_calls.h"
#include "coordinator/services/session_service.h"
#include "coordinator/services/store_service.h"
#include "coordinator/state_store/batched_state_store.h"
#include "coordinator/state_store/memory_state_store.h"
#include "core/certificates/expiry_watch.h"
#include "core/certificates/standing.h"
#include "core/log.h"
#include "core/os/user.h"
#include "core/rpc/caller.h"
#include "core/rpc/channel.h"
#include "core/rpc/default_address.h"
#include "core/rpc/unix_socket.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

// WatchJob, ReadLogs, GetFlightRecords, GetStacks.
constexpr size_t kStreamsOfAUser = 512;
// With those whose workers have gone, and nobody has noticed yet.
constexpr size_t kSessionsOfANode = 16;
// Most requests fit; a larger one costs a round trip more.
constexpr int kWindowBytes = 4096;
// For TLS and HTTP/2's first frames together.
constexpr int kHandshakeMs = 10'000;

class RunningServer : public Server {
 public:
  // `acceptor`: null where options.listen is a Unix socket.
  RunningServer(Options options, std::shared_ptr<certificates::Standing> standing,
                std::shared_ptr<rpc::Acceptor> acceptor)
      : has_state_(options.store != nullptr),
        options_(WithStore(std::move(options))),
        standing_(std::move(standing)),
        acceptor_(std::move(acceptor)),
        loop_({.clock = *options_.clock,
               .store = *options_.store,
               .recipients = recipients_,
               .lease = options_.lease,
               .heartbeat = options_.heartbeat,
               .retention = options_.retention,
               .quarantine = options_.quarantine,
               .policy = options_.policy,
               .sender_limits = SenderLimits(options_),
               .record_path = options_.record_path,
               .audit_file = options_.audit_file.get(),
               .has_cluster_id = has_state_,
               .restored = options_.restored,
               .on_turn = [this] { health_.Turned(); }}) {}
  ~RunningServer() override { Stop(); }

  absl::Status Begin() {
    const std::optional<std::string> unix_path = rpc::UnixPath(options_.listen);
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
                               std::move(stands),
                               [gate = gate_, refused = refused_, standing = standing_](
                                   const rpc::Identity& caller, std::string_view pem,
                                   std::string_view method, const absl::Status& allowed) {
                                 absl::Status status = Admit(*gate, caller, method, allowed);
                                 if (status.ok()) return status;
                                 v1::Caller who;
                                 who.set_user(caller.name);
                                 if (standing != nullptr)
                                   who.set_certificate(standing->Read(pem).serial);
                                 for (const std::string& node : caller.nodes) who.add_nodes(node);
                                 refused->OnRefused(who, method, status);
                                 return status;
                               }));
    // gRPC would replace a socket at which another process listens.
    if (unix_path) {
      MESHRUN_ASSIGN_OR_RETURN(claim_, rpc::SocketClaim::Take(*unix_path));
    }
    rpc::EnableServerPlugins();
    grpc::ServerBuilder builder;
    rpc::ConfigureServer(builder);
    int unix_socket = 1;
    if (acceptor_ != nullptr) {
      builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
      // What a peer may send before the call has been let in. gRPC would let peers that send fast
      // have megabytes for each of their streams.
      builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
      builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
      acceptor_->Serve(builder, credentials);
    } else {
      builder.AddListeningPort(rpc::GrpcTarget(options_.listen), credentials, &unix_socket);
    }
    builder.RegisterService(&sessions_);
    builder.RegisterService(&jobs_);
    builder.RegisterService(&cluster_);
    builder.RegisterService(&store_service_);
    // The loop starts first: whoever connects is served.
    MESHRUN_RETURN_IF_ERROR(loop_.Start());
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || unix_socket == 0) {
      return absl::AlreadyExistsError(
          fmt::format("cannot listen on {}: choose another --listen", options_.listen));
    }
    if (const rpc::TlsFiles& tls = options_.security.tls; !tls.empty() && !unix_path) {
      expiry_.emplace(certificates::CertificateFiles{tls.cert, tls.key, tls.ca},
                      [this](const std::string& text) {
                        log::Warning(text);
                        Note("CertificateEnding", text);
                      });
    }
    health_.Watch(*server_,
                  {v1::SessionService::service_full_name(), v1::JobService::service_full_name(),
                   v1::ClusterService::service_full_name(), v1::StoreService::service_full_name()});
    address_ = options_.listen;
    if (acceptor_ != nullptr) {
      port_ = acceptor_->port();
      address_ = fmt::format("{}:{}", address_.substr(0, address_.rfind(':')), port_);
      acceptor_->Start();
    }
    return absl::OkStatus();
  }

  const std::string& address() const override { return address_; }
  int port() const override { return port_; }
  uint64_t term() const override { return loop_.term(); }

  void SetPolicy(v1::Policy policy) override {
    v1::Caller by;
    by.set_user(os::UserName());
    by.set_peer("signal:SIGHUP");
    loop_.SetPolicy(std::move(policy), std::move(by));
  }
  void ReopenAuditFile() override {
    if (options_.audit_file != nullptr) options_.audit_file->Reopen();
  }
  void Note(const std::string& kind, const std::string& message) override {
    v1::StateEvent event;
    event.mutable_notice()->set_kind(kind);
    event.mutable_notice()->set_message(message);
    loop_.PostEnd(std::move(event));
  }

  void Stop() override {
    refused_->Stop();
    loop_.Stop();
    relay_.Stop();
    health_.Stop();
    if (server_ == nullptr) return;
    if (acceptor_ != nullptr) acceptor_->Stop();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
    server_->Wait();
    server_.reset();
  }

 private:
  // Without certificates nobody knows who asks, and all are one user's.
  static std::optional<Senders::Limits> SenderLimits(const Options& options) {
    if (options.security.tls.empty() || rpc::UnixPath(options.listen)) return std::nullopt;
    return Senders::Limits();
  }
  Shell MakeShell() {
    Shell shell{loop_, recipients_, standing_.get(), acceptor_.get()};
    shell.certificate_grace = options_.security.certificate_grace;
    if (has_state_) shell.store = options_.store.get();
    shell.refused = refused_.get();
    if (SenderLimits(options_)) {
      shell.streams = &streams_;
      shell.sessions = &worker_sessions_;
      shell.gate = gate_.get();
    }
    return shell;
  }
  static absl::Status Admit(CallGate& gate, const rpc::Identity& caller, std::string_view method,
                            const absl::Status& allowed) {
    if (!allowed.ok()) {
      gate.OnDenied(caller);
      return allowed;
    }
    // Health checks are read by gRPC itself. A worker's session and its logs come in pieces, and a
    // node whose ranks have called too much must not be lost for it.
    const bool is_whole = method.starts_with("/meshrun.v1.") && !method.ends_with("/OpenSession") &&
                          !method.ends_with("/UploadLog");
    return is_whole ? gate.Admit(caller) : gate.AdmitUnseen(caller);
  }
  static Options WithStore(Options options) {
    if (options.store == nullptr) options.store = std::make_unique<MemoryStateStore>();
    const StateStore::Limits limits = options.store->limits();
    if (limits.rows != StateStore::Limits().rows || limits.bytes != StateStore::Limits().bytes) {
      options.store = std::make_unique<BatchedStateStore>(std::move(options.store));
    }
    return options;
  }

  const bool has_state_;
  Options options_;
  const std::shared_ptr<certificates::Standing> standing_;
  const std::shared_ptr<rpc::Acceptor> acceptor_;
  rpc::LoopHealth health_{options_.health};
  Recipients recipients_;
  EventLoop loop_;
  OpenStreams streams_{kStreamsOfAUser, "streams"};
  OpenStreams worker_sessions_{kSessionsOfANode, "sessions"};
  // Calls that gRPC has not matched to a service yet may outlive this server.
  const std::shared_ptr<CallGate> gate_ = std::make_shared<CallGate>(
      CallGate::Limits(), *options_.clock, [acceptor = acceptor_](const std::string& name) {
        if (acceptor != nullptr) acceptor->CloseBusiest(name);
      });
  const std::shared_ptr<RefusedCalls> refused_ =
      std::make_shared<RefusedCalls>(*options_.clock, loop_);
  const Shell shell_ = MakeShell();
  LogRelay relay_{shell_};
  SessionService sessions_{shell_, relay_};
  JobService jobs_{shell_, relay_};
  ClusterService cluster_{shell_};
  StoreService store_service_{shell_};
  int port_ = 0;
  std::string address_;
  rpc::SocketClaim claim_;
  std::unique_ptr<grpc::Server> server_;
  std::optional<certificates::ExpiryWatch> expiry_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(Options options) {
  std::shared_ptr<certificates::Standing> standing;
  if (const rpc::TlsFiles& tls = options.security.tls; !tls.empty()) {
    MESHRUN_RETURN_IF_ERROR(certificates::CheckPair(tls.cert, tls.key));
    MESHRUN_ASSIGN_OR_RETURN(
        standing, certificates::Standing::Start(
                      {.deny_file = options.security.deny_file,
                       .on_problem = [](const std::string& text) { log::Error(text); },
                       .on_list =
                           [](const certificates::DenyList& list) {
                             log::Info("the deny list was read", {{"serials", list.serials.size()},
                                                                  {"names", list.names.size()}});
                           }}));
  }
  if (options.listen.empty()) {
    MESHRUN_ASSIGN_OR_RETURN(options.listen, rpc::DefaultListenAddress());
  }
  std::shared_ptr<rpc::Acceptor> acceptor;
  if (!rpc::UnixPath(options.listen)) {
    if (options.listen.find(':') == std::string::npos) {
      return absl::InvalidArgumentError(fmt::format(
          "'{}' is neither unix:PATH nor HOST:PORT: write for example --listen 0.0.0.0:7480",
          options.listen));
    }
    MESHRUN_ASSIGN_OR_RETURN(acceptor, rpc::Acceptor::Listen(options.listen, options.connections));
  }
  auto server =
      std::make_unique<RunningServer>(std::move(options), std::move(standing), std::move(acceptor));
  MESHRUN_RETURN_IF_ERROR(server->Begin());
  return server;
}

}  // namespace meshrun::coordinator
