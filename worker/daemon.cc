#include "worker/daemon.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/clock.h"
#include "core/log.h"
#include "core/os/boot_time.h"
#include "core/os/files.h"
#include "core/os/host_name.h"
#include "core/os/process.h"
#include "core/os/user.h"
#include "core/proto_time.h"
#include "core/rpc/default_address.h"
#include "core/rpc/unix_socket.h"
#include "core/status.h"
#include "core/utf8.h"
#include "core/version.h"
#include "meshrun/v1/agent_service.grpc.pb.h"
#include "meshrun/v1/store_service.grpc.pb.h"
#include "worker/host_address.h"
#include "worker/inventory/inventory.h"
#include "worker/inventory/nvml.h"
#include "worker/launch/shipped_jobs.h"
#include "worker/pictures/picture_paths.h"

extern char** environ;

namespace meshrun::worker {
namespace {

constexpr std::chrono::milliseconds kBeat(500);
// Longest time between two looks for logs that have become too old.
constexpr std::chrono::minutes kPruneInterval(10);
// Between two reports of logs that were removed.
constexpr std::chrono::minutes kRemovedInterval(10);
// RunHealthCheck kills at its timeout, and then returns.
constexpr std::chrono::seconds kHealthCheckEnds(5);
// From the decision to kill to the death of the last rank: daemons and supervisors that wait for a
// processor, and the passes over /proc.
constexpr std::chrono::seconds kFenceMargin(2);

HostLimits LimitsOfHost(const v1::Resources& resources, uint64_t pids_per_rank) {
  HostLimits limits;
  limits.memory_bytes = resources.memory_bytes();
  limits.pids_per_rank = pids_per_rank;
  for (const v1::Gpu& gpu : resources.gpus()) {
    if (gpu.has_minor()) limits.minor_by_gpu[gpu.index()] = gpu.minor();
  }
  limits.minors = NvidiaMinors();
  return limits;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Create(DaemonOptions options) {
  std::unique_ptr<Daemon> daemon(new Daemon(std::move(options)));
  MESHRUN_RETURN_IF_ERROR(daemon->Init());
  return daemon;
}

Daemon::~Daemon() {
  if (ender_.joinable()) ender_.join();
}

absl::Status Daemon::Init() {
  if (options_.coordinator.empty()) {
    MESHRUN_ASSIGN_OR_RETURN(options_.coordinator, rpc::DefaultConnectAddress());
  }
  MESHRUN_ASSIGN_OR_RETURN(coordinators_,
                           ParseCoordinators(options_.coordinator, options_.security));
  // Made before the coordinator starts: nobody else can then put a socket there.
  MESHRUN_RETURN_IF_ERROR(MakeSocketDirectories(coordinators_));
  if (options_.name.empty()) options_.name = os::HostName();
  MESHRUN_ASSIGN_OR_RETURN(
      channels_, MakeChannels(coordinators_, options_.security, [this](std::function<void()> work) {
        files_.Run("certificates", std::move(work));
      }));
  if (const rpc::TlsFiles& tls = options_.security.tls; !tls.empty()) {
    expiry_.emplace(
        certificates::CertificateFiles{tls.cert, tls.key, tls.ca},
        [](const std::string& text) { log::Warning(text); },
        [this](const certificates::Certificate& renewed) {
          const rpc::Identity identity = rpc::MakeIdentity(renewed.common_name, renewed.uris);
          if (!identity.SpeaksFor(options_.name)) {
            log::Warning("the new certificate is not this node's: the session goes on without it",
                         {{"certificate", renewed.common_name}, {"node", options_.name}});
            return;
          }
          channels_[1]->Replace();
          channels_[2]->Replace();
          loop_.Post([this] { session_->Renew(); });
        });
  }
  MESHRUN_ASSIGN_OR_RETURN(state_dir_,
                           StateDir::Open(options_.state_dir, ids_, options_.join_cluster));
  if (options_.run_as_submitter) {
    if (::geteuid() != 0) {
      return absl::InvalidArgumentError(
          "--run-as-submitter: only root can start processes of other users, and this is user " +
          os::UserName());
    }
    MESHRUN_RETURN_IF_ERROR(state_dir_->OpenToRanks());
  }
  if (options_.addresses.empty()) {
    MESHRUN_ASSIGN_OR_RETURN(options_.addresses, OwnAddressesOf(coordinators_));
  }
  if (options_.jobs_dir.empty()) options_.jobs_dir = DefaultJobsDirectory();
  shipped_jobs_ = ListShippedJobs(options_.jobs_dir);

  InventoryOverrides overrides = {.cores = options_.cores,
                                  .slots = options_.slots,
                                  .memory_bytes = options_.memory_bytes,
                                  .ranks = options_.ranks,
                                  .gpu_ids = options_.gpu_ids};
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES"))
    overrides.visible_devices = visible;
  MESHRUN_ASSIGN_OR_RETURN(resources_, TakeInventory(overrides));
  FindCgroups();
  ports_ = std::make_unique<PortRange>(
      PortRange::Options{.interval = options_.ports, .seed = std::hash<std::string>()(node_id())},
      Clock::Real());

  generations_ = std::make_unique<Generations>(
      Generations::Host{
          .loop = loop_,
          .files = files_,
          .logs_in_use = *logs_in_use_,
          .state_dir = *state_dir_,
          .ports = *ports_,
          .ids = ids_,
          .facts = {.node_name = options_.name,
                    .cores = resources_.cores(),
                    .has_gpus = resources_.gpus_size() > 0,
                    .gpu_uuids = NamesOfGpus(resources_),
                    .gloo_interface = GlooInterface(options_.addresses, coordinators_.front()),
                    .log_limit_bytes = LimitOfStream(
                        options_.log_limit_bytes, options_.running_logs_bytes, resources_.slots()),
                    .log_layout = options_.log_layout},
          .gpus = {resources_.gpus().begin(), resources_.gpus().end()},
          .environment = options_.run_as_submitter ? WithoutUser(InheritedEnvironment(environ))
                                                   : InheritedEnvironment(environ),
          .jobs_dir = options_.jobs_dir,
          .supervisor = {.path = os::SelfPath(),
                         .lifeline_fd = options_.lifeline_fd.get(),
                         .end_with_daemon = options_.kill_at_once,
                         .stdin_fd = options_.stdin_fd.get(),
                         .stdin_rank = options_.stdin_rank,
                         .stdin_directory = options_.stdin_directory,
                         .terminal = options_.terminal},
          .cgroups = cgroups_,
          .limits = LimitsOfHost(resources_, options_.pids_per_rank),
          .file_timeout = options_.file_timeout},
      Generations::Handler{
          .send =
              [this](v1::OpenSessionRequest message) {
                if (message.has_rank_exit() && message.rank_exit().teardown() && IsEnding()) {
                  message.mutable_rank_exit()->set_error_message(stopping_because_);
                }
                session_->Send(std::move(message));
              },
          .on_rank_ended = [this](const std::string& job_id, uint64_t generation,
                                  int rank) { logs_->RankEnded(job_id, generation, rank); },
          .on_generation_ended =
              [this](const std::string& job_id, uint64_t generation) {
                OnGenerationEnded(job_id, generation);
              },
          .on_agent_connection =
              [this](os::UniqueFd connection) { agent_server_->Serve(std::move(connection)); },
          .upload_stack =
              [this](v1::UploadStackRequest upload) { uploads_->Send(std::move(upload)); },
          .upload_flight_record =
              [this](v1::UploadFlightRecordRequest upload) { uploads_->Send(std::move(upload)); },
          .clock = [this] { return session_->clock().Best(); },
          .ping = [this] { return MakePing(); }});
  uploads_ = std::make_unique<RankUploads>(channels_[1], node_id(), state_dir_->incarnation());
  logs_ = std::make_unique<LogUploads>(channels_[1]);
  session_ = std::make_unique<Session>(
      loop_, channels_[0], state_dir_->incarnation(),
      Session::Handler{
          // Its directory may be gone since, and another user's by now.
          .check_address = [this] { return MakeSocketDirectories(coordinators_); },
          .hello = [this] { return MakeHello(); },
          .check_welcome =
              [this](const v1::Welcome& welcome) {
                return state_dir_->CheckCluster(welcome.cluster_id());
              },
          .on_welcome = [this](const v1::Welcome& welcome,
                               const v1::Hello& hello) { OnWelcome(welcome, hello); },
          .on_message = [this](const v1::OpenSessionResponse& message) { OnMessage(message); },
          .on_refused = [this](const absl::Status& status) { return OnRefused(status); }},
      state_dir_->term());
  agent_server_ = std::make_unique<AgentServer>(loop_, *generations_, channels_[2], node_id(),
                                                state_dir_->incarnation());

  MESHRUN_RETURN_IF_ERROR(agent_server_->Start());
  health_ = std::make_unique<rpc::LoopHealth>(options_.health);
  health_->Watch(agent_server_->server(),
                 {v1::AgentService::service_full_name(), v1::StoreService::service_full_name()});
  Beat();
  WatchSignals();
  WatchLifeline();
  AddHostChecks();
  // Ranks of an earlier incarnation must be known before they can ask.
  generations_->Adopt([this] {
    host_checks_->Start([this] {
      session_->Start(generations_->InheritedContact().value_or(os::BootTimeNow()));
      OnTick();
    });
  });
  options_.keep_logs.root = state_dir_->LogRoot();
  PruneOldLogs();
  MESHRUN_ASSIGN_OR_RETURN(
      own_socket_,
      AgentSocket::Listen(loop_, state_dir_->AgentSocket(), [this](os::UniqueFd connection) {
        agent_server_->Serve(std::move(connection));
      }));
  return BeginHttp();
}

void Daemon::FindCgroups() {
  // What a supervisor that is killed leaves behind comes to this process.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  cgroups_ = Cgroups::Find(options_.limits);
  for (const std::string& limit : cgroups_.kept()) resources_.add_limits(limit);
  if (cgroups_.lacking().empty()) return;
  log::Warning("jobs are not held to every limit here: docs/operations.md, \"Limits\"",
               {{"without", fmt::format("{}", fmt::join(cgroups_.lacking(), "; "))}});
}

void Daemon::AddHostChecks() {
  host_checks_ = std::make_unique<HostChecks>(loop_, files_, options_.host_checks, [this] {
    v1::OpenSessionRequest message;
    *message.mutable_host_health() = HealthOfHost();
    session_->Send(std::move(message));
  });
  if (options_.host_checks.interval.count() == 0) return;
  host_checks_->Add("the check of the state directory",
                    [directory = options_.state_dir, least = options_.least_free_bytes] {
                      return CheckDirectory(directory, least);
                    });
  host_checks_->Add("the check of the port directory",
                    [locks = std::make_shared<PortLocks>(PortLocks::Options())] {
                      const absl::Status status = locks->Open();
                      if (status.ok()) return std::vector<Problem>();
                      return std::vector<Problem>{std::string(status.message())};
                    });
  if (resources_.gpus_size() > 0) {
    host_checks_->Add(
        "the check of the GPUs",
        [offered = std::vector<v1::Gpu>(resources_.gpus().begin(), resources_.gpus().end())] {
          return CheckGpus(offered, ListGpus());
        });
  }
  if (!options_.health_check.empty()) {
    host_checks_->AddSlow(
        "the health check " + options_.health_check,
        [program = options_.health_check, name = options_.name,
         timeout = options_.health_check_timeout] {
          return RunHealthCheck(program, name, timeout);
        },
        options_.health_check_timeout + kHealthCheckEnds);
  }
}

v1::HostHealth Daemon::HealthOfHost() const {
  v1::HostHealth health;
  for (const Problem& problem : host_checks_->problems()) {
    health.add_problems(EscapeBytes(problem));
  }
  return health;
}

v1::Hello Daemon::MakeHello() const {
  v1::Hello hello;
  hello.set_node_id(node_id());
  hello.set_name(options_.name);
  hello.mutable_addresses()->Add(options_.addresses.begin(), options_.addresses.end());
  *hello.mutable_resources() = resources_;
  hello.set_version(kVersion);
  hello.mutable_labels()->insert(options_.labels.begin(), options_.labels.end());
  for (const std::string& job : shipped_jobs_) hello.add_shipped_jobs(job);
  for (v1::RunningGeneration& running : generations_->Running())
    *hello.add_running() = std::move(running);
  hello.set_draining(stopping_);
  *hello.mutable_fence_after() = ToProtoDuration(KillAfter() + kFenceMargin);
  hello.set_cluster_id(state_dir_->cluster_id());
  hello.set_machine_id(machine_id_);
  *hello.mutable_health() = HealthOfHost();
  return hello;
}

absl::Status Daemon::Run() {
  loop_.Run();
  if (ender_.joinable()) ender_.join();
  return outcome_;
}

void Daemon::OnWelcome(const v1::Welcome& welcome, const v1::Hello& hello) {
  const auto lease = FromProto(welcome.lease());
  ping_interval_ =
      std::min<std::chrono::nanoseconds>(FromProto(welcome.heartbeat_interval()), lease / 3);
  ping_interval_ =
      std::max<std::chrono::nanoseconds>(ping_interval_, std::chrono::milliseconds(10));
  if (const absl::Status joined = state_dir_->JoinCluster(welcome.cluster_id()); !joined.ok()) {
    log::Warning("cannot write which cluster this node belongs to", {{"error", joined}});
  }
  if (const absl::Status kept = state_dir_->KeepTerm(session_->term()); !kept.ok())
    log::Warning("cannot write the coordinator's term", {{"error", kept}});
  if (welcome.roll_call()) {
    log::Info("the coordinator was restored from a copy, and asks what runs here");
    for (v1::OpenSessionRequest& details : generations_->Details())
      session_->Send(std::move(details));
  }
  generations_->OnSession(lease, hello);
  // It may have changed while the session was being opened, when nothing could be sent.
  v1::OpenSessionRequest health;
  *health.mutable_host_health() = HealthOfHost();
  if (!std::equal(hello.health().problems().begin(), hello.health().problems().end(),
                  health.host_health().problems().begin(), health.host_health().problems().end())) {
    session_->Send(std::move(health));
  }
  if (options_.ready_fd) {
    const std::string line =
        nlohmann::json({{"node_id", node_id()}, {"name", options_.name}}).dump() + "\n";
    (void)!::write(options_.ready_fd.get(), line.data(), line.size());
    options_.ready_fd.reset();
  }
}

void Daemon::OnMessage(const v1::OpenSessionResponse& message) {
  const v1::Fence& fence = message.fence();
  if (fence.incarnation() != 0 && fence.incarnation() != state_dir_->incarnation()) {
    log::Warning("ignored a command for another incarnation",
                 {{"its", fence.incarnation()}, {"own", state_dir_->incarnation()}});
    return;
  }
  // Our names hold no slash; a name with one could leave the directory.
  const auto is_job = [](const std::string& id) {
    return !id.empty() && id[0] != '.' && id.find('/') == std::string::npos;
  };
  if (message.has_open_log()) {
    const v1::OpenLog& open = message.open_log();
    if (!is_job(open.job_id())) return;
    logs_->Open(
        open,
        options_.log_layout.Path(state_dir_->LogDirectory(open.job_id(), open.generation()),
                                 open.job_id(), open.generation(), open.rank(), open.stream()),
        generations_->RankMayWrite(open.job_id(), open.generation(), open.rank()));
  } else if (message.has_open_pictures()) {
    if (is_job(message.open_pictures().job_id())) OpenPictures(message.open_pictures());
  } else if (message.has_close_log()) {
    logs_->Close(message.close_log().stream_id());
  } else {
    generations_->Handle(message);
  }
}

void Daemon::OpenPictures(const v1::OpenPictures& open) {
  const std::string ranks =
      state_dir_->open_to_ranks() ? state_dir_->JobDirectory(open.job_id()) : "";
  std::vector<PicturePlace> places;
  for (const v1::PictureSource& source : open.sources()) {
    const uint64_t generation = source.process_generation();
    const std::string logs = state_dir_->LogDirectory(open.job_id(), generation);
    // The directory of another user's rank goes when its job has left this host.
    places.push_back({source.rank(),
                      {PicturesPath(ranks, logs, source.process_rank(), generation),
                       KeptPicturesPath(logs, source.process_rank())}});
  }
  logs_->OpenPictures(open, std::move(places));
}

bool Daemon::OnRefused(const absl::Status& status) {
  // Ranks keep running until the orphan timeout: the right coordinator may come back.
  if (!generations_->AllEnded()) return false;
  outcome_ = Annotate(
      status, fmt::format("the coordinator at {} refuses this worker", options_.coordinator));
  End();
  return true;
}

void Daemon::Beat() {
  health_->Turned();
  // In the grace of a certificate that has ended only connections count which are there.
  for (const auto& channel : channels_) (void)channel->Get()->GetState(/*try_to_connect=*/true);
  loop_.After(kBeat, [this] { Beat(); });
}

void Daemon::OnGenerationEnded(const std::string& job_id, uint64_t generation) {
  options_.keep_logs.newest = state_dir_->LogDirectory(job_id, generation);
  PruneLogsLater();
  // Not from within the generation's own call.
  if (stopping_) loop_.Post([this] { EndWhenQuiet(); });
}

void Daemon::PruneOldLogs() {
  if (options_.keep_logs.keep_for.count() == 0) return;
  PruneLogsLater();
  loop_.After(std::min<std::chrono::nanoseconds>(options_.keep_logs.keep_for, kPruneInterval),
              [this] { PruneOldLogs(); });
}

void Daemon::SayRemoved() {
  if (removed_.empty() || !session_->open()) return;
  // At every generation's end something may go: one event sums up what has gone meanwhile.
  const auto now = std::chrono::steady_clock::now();
  if (said_removed_.has_value() && now - *said_removed_ < kRemovedInterval) return;
  said_removed_ = now;
  for (const auto& [user, logs] : std::exchange(removed_, {})) {
    v1::OpenSessionRequest message;
    v1::LogsRemoved& said = *message.mutable_logs_removed();
    said.set_submitter(user);
    said.set_job_id(logs.job_id);
    said.set_generations(logs.generations);
    said.set_bytes(logs.bytes);
    said.set_keep_bytes(options_.keep_logs.keep_bytes);
    session_->Send(std::move(message));
  }
}

void Daemon::PruneLogsLater() {
  if (pruning_) {
    prune_again_ = true;
    return;
  }
  pruning_ = true;
  // A key with a slash: no job has it, since job ids have none.
  const auto removed = std::make_shared<std::vector<RemovedLogs>>();
  files_.Run(
      "logs/",
      [retention = options_.keep_logs, in_use = logs_in_use_, removed] {
        *removed = PruneLogs(retention, *in_use);
      },
      [this, removed] {
        for (const RemovedLogs& logs : *removed) removed_[logs.user].Add(logs);
        SayRemoved();
        pruning_ = false;
        if (std::exchange(prune_again_, false)) PruneLogsLater();
      });
}

}  // namespace meshrun::worker
