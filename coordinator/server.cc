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
#include "coordinator/services/session_service.h"
#include "coordinator/services/store_service.h"
#include "coordinator/state_store/batched_state_store.h"
#include "coordinator/state_store/memory_state_store.h"
#include "core/certificates/expiry_watch.h"
#include "core/certificates/standing.h"
#include "core/log.h"
#include "core/rpc/caller.h"
#include "core/rpc/channel.h"
#include "core/rpc/default_address.h"
#include "core/rpc/unix_socket.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

// Streams that are open then stay on their connection. Below the time for which workers let their
// ranks go on without a coordinator.
constexpr int kConnectionAgeMs = 120'000;

class RunningServer : public Server {
 public:
  RunningServer(Options options, std::shared_ptr<certificates::Standing> standing)
      : has_state_(options.store != nullptr),
        options_(WithStore(std::move(options))),
        standing_(std::move(standing)),
        loop_({.clock = *options_.clock,
               .store = *options_.store,
               .recipients = recipients_,
               .lease = options_.lease,
               .heartbeat = options_.heartbeat,
               .retention = options_.retention,
               .quarantine = options_.quarantine,
               .record_path = options_.record_path,
               .has_cluster_id = has_state_,
               .on_turn = [this] { health_.Turned(); }}) {}
  ~RunningServer() override { Stop(); }

  absl::Status Begin() {
    if (options_.listen.empty()) {
      MESHRUN_ASSIGN_OR_RETURN(options_.listen, rpc::DefaultListenAddress());
    }
    const std::optional<std::string> unix_path = rpc::UnixPath(options_.listen);
    if (!unix_path && options_.listen.find(':') == std::string::npos) {
      return absl::InvalidArgumentError(fmt::format(
          "'{}' is neither unix:PATH nor HOST:PORT: write for example --listen 0.0.0.0:7480",
          options_.listen));
    }
    rpc::CertificateCheck stands;
    if (standing_ != nullptr) {
      stands = [standing = standing_](std::string_view pem) { return standing->Check(pem); };
    }
    MESHRUN_ASSIGN_OR_RETURN(auto credentials,
                             rpc::ServerCredentials("meshrun-coordinator", options_.listen,
                                                    options_.security, std::move(stands)));
    // gRPC would replace a socket at which another process listens.
    if (unix_path) {
      MESHRUN_ASSIGN_OR_RETURN(claim_, rpc::SocketClaim::Take(*unix_path));
    }
    rpc::EnableServerPlugins();
    grpc::ServerBuilder builder;
    rpc::ConfigureServer(builder);
    // Calls that begin later come over a connection that shows the caller's renewed certificate.
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kConnectionAgeMs);
    builder.AddListeningPort(rpc::GrpcTarget(options_.listen), credentials, &port_);
    builder.RegisterService(&sessions_);
    builder.RegisterService(&jobs_);
    builder.RegisterService(&cluster_);
    builder.RegisterService(&store_service_);
    // The loop starts first: whoever connects is served.
    MESHRUN_RETURN_IF_ERROR(loop_.Start());
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::AlreadyExistsError(fmt::format(
          "cannot listen on {}: it is taken, or not this host's; choose another --listen, or port "
          "0 for any free one",
          options_.listen));
    }
    if (const rpc::TlsFiles& tls = options_.security.tls; !tls.empty() && !unix_path) {
      expiry_.emplace(std::vector<std::string>{tls.cert, tls.ca}, [this](const std::string& text) {
        log::Warning(text);
        v1::StateEvent event;
        event.mutable_notice()->set_kind("CertificateEnding");
        event.mutable_notice()->set_message(text);
        loop_.PostEnd(std::move(event));
      });
    }
    health_.Watch(*server_,
                  {v1::SessionService::service_full_name(), v1::JobService::service_full_name(),
                   v1::ClusterService::service_full_name(), v1::StoreService::service_full_name()});
    address_ = options_.listen;
    if (unix_path) {
      port_ = 0;
    } else {
      address_ = fmt::format("{}:{}", address_.substr(0, address_.rfind(':')), port_);
    }
    return absl::OkStatus();
  }

  const std::string& address() const override { return address_; }
  int port() const override { return port_; }
  uint64_t term() const override { return loop_.term(); }

  void Stop() override {
    loop_.Stop();
    relay_.Stop();
    health_.Stop();
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
    server_->Wait();
    server_.reset();
  }

 private:
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
  rpc::LoopHealth health_{options_.health};
  Recipients recipients_;
  EventLoop loop_;
  LogRelay relay_{{loop_, recipients_, standing_.get()}};
  SessionService sessions_{{loop_, recipients_, standing_.get()}, relay_};
  JobService jobs_{{loop_, recipients_, standing_.get()}, relay_};
  ClusterService cluster_{{loop_, recipients_, standing_.get()}};
  StoreService store_service_{{loop_, recipients_, standing_.get()}};
  int port_ = 0;
  std::string address_;
  rpc::SocketClaim claim_;
  std::unique_ptr<grpc::Server> server_;
  std::optional<certificates::ExpiryWatch> expiry_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(Options options) {
  std::shared_ptr<certificates::Standing> standing;
  if (!options.security.tls.empty()) {
    MESHRUN_ASSIGN_OR_RETURN(
        standing, certificates::Standing::Start(
                      {.deny_file = options.security.deny_file,
                       .on_problem = [](const std::string& text) { log::Error(text); }}));
  }
  auto server = std::make_unique<RunningServer>(std::move(options), std::move(standing));
  MESHRUN_RETURN_IF_ERROR(server->Begin());
  return server;
}

}  // namespace meshrun::coordinator
