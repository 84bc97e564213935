#include "coordinator/server.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <optional>
#include <utility>

#include "coordinator/api/api.h"
#include "coordinator/event_loop/event_loop.h"
#include "coordinator/http_routes.h"
#include "coordinator/leadership/fixed_leadership.h"
#include "coordinator/leadership/not_leading.h"
#include "coordinator/metrics/coordinator_metrics.h"
#include "coordinator/own_certificate.h"
#include "coordinator/services/cluster_service.h"
#include "coordinator/services/job_service.h"
#include "coordinator/services/log_relay.h"
#include "coordinator/services/refused_calls.h"
#include "coordinator/services/session_service.h"
#include "coordinator/services/store_service.h"
#include "coordinator/state_store/batched_state_store.h"
#include "coordinator/state_store/memory_state_store.h"
#include "core/certificates/expiry_watch.h"
#include "core/log.h"
#include "core/os/user.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

// WatchJob, ReadLogs, GetFlightRecords, GetStacks.
constexpr size_t kStreamsOfAUser = 512;
// With those whose workers have gone, and nobody has noticed yet.
constexpr size_t kSessionsOfANode = 16;
// For threads that are at readers of logs when all calls have ended: they wait for nothing.
constexpr std::chrono::seconds kReadersEnd(10);

class RunningServer : public Server {
 public:
  // `own_door`: null where the options have one.
  RunningServer(Options options, std::unique_ptr<Door> own_door)
      : has_state_(options.store != nullptr),
        options_(WithStore(std::move(options))),
        own_door_(std::move(own_door)),
        door_(own_door_ == nullptr ? *options_.door : *own_door_),
        leadership_(options_.leadership == nullptr ? alone_ : *options_.leadership),
        metrics_(options_.metrics == nullptr ? own_metrics_ : *options_.metrics),
        loop_({.clock = *options_.clock,
               .store = *options_.store,
               .recipients = recipients_,
               .lease = options_.lease,
               .heartbeat = options_.heartbeat,
               .retention = options_.retention,
               .quarantine = options_.quarantine,
               .policy = options_.policy,
               .sender_limits = SenderLimits(door_),
               .record_path = options_.record_path,
               .audit_file = options_.audit_file.get(),
               .has_cluster_id = has_state_,
               .on_turn = [this] { health_.Turned(); },
               .leads = [this] { return leadership_.Leads(); },
               .not_leading = [this] { return NotLeading(options_.name, leadership_, ""); },
               .on_commit =
                   [this](const EventLoop::Options::Committed& committed) {
                     metrics_.OnCommit(committed);
                   }}) {}
  ~RunningServer() override { Stop(); }

  absl::Status Begin() {
    metrics_.BeginTerm();
    // The loop starts first: whoever connects is served.
    MESHRUN_RETURN_IF_ERROR(loop_.Start());
    if (options_.before_serving) options_.before_serving();
    grpc::ServerBuilder builder;
    MESHRUN_RETURN_IF_ERROR(door_.Serve(builder, /*reads=*/true, OnRefused()));
    builder.RegisterService(&sessions_);
    builder.RegisterService(&jobs_);
    builder.RegisterService(&cluster_);
    builder.RegisterService(&store_service_);
    MESHRUN_RETURN_IF_ERROR(ServeHttp());
    server_ = builder.BuildAndStart();
    // Else the door says why.
    if (server_ != nullptr) Report();
    return door_.Begin(server_.get());
  }

  const std::string& address() const override { return door_.address(); }
  int port() const override { return door_.port(); }
  std::string http_address() const override { return http_address_; }
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
    if (front_ != nullptr) std::exchange(front_, nullptr)->Withdraw("the coordinator is stopping");
    if (own_front_ != nullptr) own_front_->Stop();
    if (server_ != nullptr) {
      door_.End();
      server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
      server_->Wait();
    }
    // Before anything is destroyed. The door looks after certificates, and may outlive us: its
    // thread may just be ending a call that has ended meanwhile.
    if (door_.standing() != nullptr) door_.standing()->Quiesce();
    // The same of the alarms of log readers.
    if (!relay_.AwaitReaders(kReadersEnd)) {
      log::Error("a reader of logs has not ended", {{"readers", relay_.readers_alive()}});
    }
    server_.reset();
  }

 private:
  Door::OnRefused OnRefused() const {
    return [refused = refused_](const v1::Caller& who, std::string_view method,
                                const absl::Status& why) { refused->OnRefused(who, method, why); };
  }
  absl::Status ServeHttp() {
    if (options_.front == nullptr) {
      MESHRUN_ASSIGN_OR_RETURN(own_front_, OpenHttpFront(options_.http, door_));
    }
    front_ = own_front_ == nullptr ? options_.front : own_front_.get();
    if (front_ == nullptr) return absl::OkStatus();
    http_address_ = front_->address();
    http::Routes routes =
        MakeRoutes({.loop = loop_,
                    .health = health_,
                    .metrics = metrics_,
                    .store = *options_.store,
                    .front = *front_,
                    .leadership = leadership_,
                    .guard =
                        [this](std::string method, http::Handler handler) {
                          return api_.Guard(std::move(method), std::move(handler));
                        },
                    .acceptor = door_.acceptor(),
                    .tls = door_.security().tls});
    routes.Add(
        "/", "", [this](const http::Request& request) { return api_.Handle(request); },
        /*takes_post=*/true);
    front_->Serve(std::move(routes));
    return absl::OkStatus();
  }
  // Health, and the end of our own certificate.
  void Report() {
    const rpc::TlsFiles& tls = door_.security().tls;
    if (door_.KnowsCallers()) {
      expiry_.emplace(
          certificates::CertificateFiles{tls.cert, tls.key, tls.ca},
          [this](const std::string& text) {
            log::Warning(text);
            Note("CertificateEnding", text);
          },
          [this](const certificates::Certificate&) {
            const absl::Status serves = CheckServes(door_.security(), door_.address());
            if (!serves.ok()) log::Error("no new connection comes", {{"why", serves}});
          });
    }
    health_.Watch(*server_,
                  {v1::SessionService::service_full_name(), v1::JobService::service_full_name(),
                   v1::ClusterService::service_full_name(), v1::StoreService::service_full_name()});
  }
  // Without certificates nobody knows who asks, and all are one user's.
  static std::optional<Senders::Limits> SenderLimits(const Door& door) {
    if (!door.KnowsCallers()) return std::nullopt;
    return Senders::Limits();
  }
  Shell MakeShell() {
    Shell shell{loop_, recipients_, door_.standing(), door_.acceptor()};
    shell.certificate_grace = door_.security().certificate_grace;
    if (has_state_) shell.store = options_.store.get();
    shell.refused = refused_.get();
    shell.metrics = &metrics_;
    shell.http_address = &http_address_;
    shell.leadership = &leadership_;
    shell.state_engine = options_.state_engine;
    if (door_.KnowsCallers()) {
      shell.streams = &streams_;
      shell.sessions = &worker_sessions_;
      shell.gate = &door_.gate();
    }
    return shell;
  }
  static Options WithStore(Options options) {
    if (options.state_engine.empty()) options.state_engine = options.store ? "sqlite" : "memory";
    if (options.store == nullptr) options.store = std::make_unique<MemoryStateStore>();
    const StateStore::Limits limits = options.store->limits();
    if (limits.rows != StateStore::Limits().rows || limits.bytes != StateStore::Limits().bytes) {
      options.store = std::make_unique<BatchedStateStore>(std::move(options.store));
    }
    return options;
  }

  const bool has_state_;
  Options options_;
  const std::unique_ptr<Door> own_door_;
  Door& door_;
  const FixedLeadership alone_;
  const Leadership& leadership_;
  rpc::LoopHealth health_{options_.health};
  CoordinatorMetrics own_metrics_;
  CoordinatorMetrics& metrics_;
  Recipients recipients_;
  EventLoop loop_;
  OpenStreams streams_{kStreamsOfAUser, "streams"};
  OpenStreams worker_sessions_{kSessionsOfANode, "sessions"};
  // Calls that gRPC has not matched to a service yet may outlive this server.
  const std::shared_ptr<RefusedCalls> refused_ =
      std::make_shared<RefusedCalls>(*options_.clock, loop_);
  const Shell shell_ = MakeShell();
  LogRelay relay_{shell_};
  SessionService sessions_{shell_, relay_};
  JobService jobs_{shell_, relay_};
  ClusterService cluster_{shell_};
  StoreService store_service_{shell_};
  const Api api_{{.jobs = jobs_,
                  .cluster = cluster_,
                  .admit = door_.Admission(/*reads=*/true, OnRefused()),
                  .on_unreadable = [this](const rpc::Identity& caller, size_t bytes) {
                    door_.gate().OnRequest(caller, bytes);
                  }}};
  // Written before anybody is served.
  std::string http_address_;
  std::unique_ptr<HttpFront> own_front_;
  // Null: nothing is served there, or no more.
  HttpFront* front_ = nullptr;
  std::unique_ptr<grpc::Server> server_;
  std::optional<certificates::ExpiryWatch> expiry_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(Options options) {
  std::unique_ptr<Door> own;
  if (options.door == nullptr) {
    MESHRUN_ASSIGN_OR_RETURN(own, Door::Open({.listen = options.listen,
                                              .security = options.security,
                                              .connections = options.connections,
                                              .clock = options.clock}));
  }
  auto server = std::make_unique<RunningServer>(std::move(options), std::move(own));
  MESHRUN_RETURN_IF_ERROR(server->Begin());
  return server;
}

}  // namespace meshrun::coordinator
