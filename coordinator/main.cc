// meshrun-coordinator: the control plane in one process.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "coordinator/own_state.h"
#include "coordinator/policy_file.h"
#include "coordinator/server.h"
#include "coordinator/shared_state.h"
#include "coordinator/state_flags.h"
#include "core/exit_codes.h"
#include "core/log.h"
#include "core/os/process.h"
#include "core/proto_time.h"
#include "core/rpc/health_flags.h"
#include "core/rpc/security_flags.h"
#include "core/signal_name.h"
#include "core/status.h"
#include "core/text.h"
#include "core/utf8.h"
#include "core/version.h"

namespace {

using meshrun::coordinator::AuditFile;
using meshrun::coordinator::Note;
using meshrun::coordinator::PolicyFile;
using meshrun::coordinator::Server;
using meshrun::coordinator::StateFlags;

// A user's largest job and some more.
constexpr uint64_t kLeastJobBytes = 16u << 20;

constexpr char kFooter[] = R"(Examples:
  One machine and one user, on a Unix socket of that user, state kept across restarts:
    meshrun-coordinator --state-dir ~/meshrun-coordinator

  For several users or machines (mutual TLS is required on any TCP address):
    meshrun-coordinator --listen 0.0.0.0:7480 --state-dir /var/lib/meshrun/coordinator \
        --tls-cert coordinator.crt --tls-key coordinator.key --tls-ca ca.crt

  One of several coordinators, with the state in etcd: one leads, the others stand by:
    meshrun-coordinator --listen 0.0.0.0:7480 --state etcd://e1:2379,e2:2379,e3:2379 \
        --etcd-ca etcd-ca.crt --tls-cert coordinator.crt --tls-key coordinator.key --tls-ca ca.crt

  For a trial, nothing kept:
    meshrun-coordinator --listen unix:/tmp/trial/coordinator.sock --ephemeral

Then start a worker on this host:  meshrun-worker
or on each of several:             meshrun-worker --coordinator HOST:7480 --tls-cert ...
and look at the cluster:           meshrun nodes

A Unix socket lies in a directory that is its user's own, mode 0700; a missing one is made. Without
--listen it is $XDG_RUNTIME_DIR/meshrun/coordinator.sock, else below ~/.local/state/meshrun.

A restarted coordinator takes running jobs over as they are: training does not notice.
Exit codes: 0 stopped by a signal, 2 wrong call, 75 could not serve (address or state in use).)";

struct Flags {
  // Empty: the default socket.
  std::string listen;
  std::string http = "auto";
  meshrun::coordinator::StateFlags state;
  std::string lease = "5s";
  std::string heartbeat = "1s";
  std::string certificate_grace = "72h";
  meshrun::rpc::HealthFlags health_flags;
  meshrun::rpc::LoopHealth::Options health;
  int ready_fd = -1;
  int lifeline_fd = -1;
  std::string log_format = "text";
  std::string log_level = "info";
  std::string record_events;
  // Empty: none.
  std::string policy;
  uint32_t keep_jobs = 1000;
  uint32_t keep_usage = 100'000;
  uint32_t keep_audit = 100'000;
  std::string audit_file;
  std::string keep_jobs_for;
  std::string keep_jobs_at_least = "10m";
  std::string keep_job_bytes = "512MiB";
  std::string keep_lost_nodes = "24h";
  uint32_t quarantine_after = 5;
  uint32_t quarantine_refusals = 3;
  std::string quarantine_window = "1h";
  size_t connections_per_address = meshrun::rpc::Acceptor::Limits().per_address;
  meshrun::rpc::Security security;
};

// Below what service managers wait for before they kill.
constexpr std::chrono::seconds kStopTime(20);
constexpr std::chrono::hours kLongestGrace(24 * 365);
constexpr std::string_view kPrefix = "meshrun-coordinator: ";

int Fail(std::string_view why, int code) {
  if (why.starts_with(kPrefix)) why.remove_prefix(kPrefix.size());
  // fmt::print would throw where stderr has no room.
  std::fputs(fmt::format("{}{}\n", kPrefix, meshrun::EscapeControls(why)).c_str(), stderr);
  return code;
}
// What a person must mend first, as opposed to what may pass.
int ExitCodeOf(const absl::Status& why) {
  const bool usage =
      absl::IsInvalidArgument(why) || absl::IsNotFound(why) || absl::IsPermissionDenied(why);
  return usage ? meshrun::kExitUsage : meshrun::kExitTryAgain;
}
int Fail(const absl::Status& why, int code) { return Fail(std::string(why.message()), code); }

// Says where we are to whoever started us.
void WriteReady(int fd, const Server& server) {
  const std::string line = nlohmann::json({{"address", server.address()}, {"term", server.term()}})
                               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                           "\n";
  // The coordinator goes on if its starter has gone.
  if (::write(fd, line.data(), line.size()) < 0) {
    meshrun::log::Warning("--ready-fd cannot be written", {{"fd", fd}});
  }
  ::close(fd);
}

absl::StatusOr<meshrun::v1::Retention> RetentionOf(const Flags& flags) {
  meshrun::v1::Retention retention;
  retention.set_ended_jobs(flags.keep_jobs);
  retention.set_usage_records(flags.keep_usage);
  retention.set_audit_records(flags.keep_audit);
  const auto bytes = meshrun::ParseBytes(flags.keep_job_bytes);
  if (!bytes.ok()) return meshrun::Annotate(bytes.status(), "--keep-job-bytes");
  if (*bytes < kLeastJobBytes) {
    return absl::InvalidArgumentError(
        fmt::format("--keep-job-bytes: {} or more", meshrun::FormatBytes(kLeastJobBytes)));
  }
  retention.set_job_bytes(*bytes);
  if (!flags.keep_jobs_for.empty()) {
    const auto age = meshrun::ParseDuration(flags.keep_jobs_for);
    if (!age.ok()) return meshrun::Annotate(age.status(), "--keep-jobs-for");
    *retention.mutable_ended_job_age() = meshrun::ToProtoDuration(*age);
  }
  const auto least = meshrun::ParseDuration(flags.keep_jobs_at_least);
  if (!least.ok()) return meshrun::Annotate(least.status(), "--keep-jobs-at-least");
  *retention.mutable_ended_job_least_age() = meshrun::ToProtoDuration(*least);
  const auto age = meshrun::ParseDuration(flags.keep_lost_nodes);
  if (!age.ok()) return meshrun::Annotate(age.status(), "--keep-lost-nodes");
  *retention.mutable_lost_node_age() = meshrun::ToProtoDuration(*age);
  return retention;
}

absl::StatusOr<meshrun::v1::Quarantine> QuarantineOf(const Flags& flags) {
  meshrun::v1::Quarantine quarantine;
  quarantine.set_absences(flags.quarantine_after);
  quarantine.set_refused_jobs(flags.quarantine_refusals);
  const auto window = meshrun::ParseDuration(flags.quarantine_window);
  if (!window.ok()) return meshrun::Annotate(window.status(), "--quarantine-window");
  *quarantine.mutable_window() = meshrun::ToProtoDuration(*window);
  return quarantine;
}

// After SIGHUP.
void ReloadPolicy(PolicyFile& file, Server& server) {
  const auto policy = file.Read();
  if (!policy.ok()) {
    return PolicyFile::Refuse(policy.status(), [&](auto&... said) { server.Note(said...); });
  }
  meshrun::log::Info("the policy was read again", {{"file", file.path()}});
  server.SetPolicy(*policy);
}

// What a server keeps open, or reads as it begins. `note`: null at the start of the process, which
// is strict with the policy.
absl::Status AddFiles(const Flags& flags, PolicyFile& policy_file, const Note& note,
                      Server::Options* options) {
  if (!flags.policy.empty()) {
    auto policy = note == nullptr ? policy_file.Read() : policy_file.ReadOrKeep(note);
    if (!policy.ok()) return meshrun::Annotate(policy.status(), "--policy");
    options->policy = *std::move(policy);
  }
  if (flags.audit_file.empty()) return absl::OkStatus();
  auto file = AuditFile::Open(flags.audit_file, [](const std::string& text) {
    meshrun::log::Error("the file of the audit cannot be written: its lines wait",
                        {{"error", text}});
  });
  if (!file.ok()) return meshrun::Annotate(file.status(), "--audit-file");
  options->audit_file = *std::move(file);
  return absl::OkStatus();
}

// The state is this coordinator's own.
absl::StatusOr<std::unique_ptr<Server>> StartAlone(const Flags& flags, Server::Options options) {
  if (!flags.state.ephemeral) {
    MESHRUN_ASSIGN_OR_RETURN(options.store, OpenOwnState(flags.state));
  }
  return Server::Start(std::move(options));
}

int Serve(const Flags& flags, std::chrono::milliseconds lease, std::chrono::milliseconds heartbeat,
          const meshrun::v1::Retention& retention, const meshrun::v1::Quarantine& quarantine) {
  meshrun::os::RaiseDescriptorLimit();
  // A broken pipe to whoever started us must not end the control plane.
  std::signal(SIGPIPE, SIG_IGN);
  // A reload is meant for this process, also under nohup.
  const bool reads_again = !flags.policy.empty() || !flags.audit_file.empty();
  if (reads_again) {
    std::signal(SIGHUP, SIG_DFL);
    meshrun::os::BlockTerminationSignals();
  }
  std::optional<meshrun::os::Lifeline> lifeline;
  if (flags.lifeline_fd >= 0) {
    // At once: nothing of an ephemeral state is worth keeping, and the durable one is on disk.
    lifeline.emplace(meshrun::os::UniqueFd(flags.lifeline_fd), [] { ::_exit(meshrun::kExitOk); });
  }
  PolicyFile policy_file(flags.policy);
  const auto prepare = [&](const Note& note) -> absl::StatusOr<Server::Options> {
    Server::Options options;
    options.listen = flags.listen;
    options.security = flags.security;
    options.http = flags.http;
    options.lease = lease;
    options.heartbeat = heartbeat;
    options.retention = retention;
    options.quarantine = quarantine;
    options.health = flags.health;
    options.connections.per_address = flags.connections_per_address;
    options.record_path = flags.record_events;
    MESHRUN_RETURN_IF_ERROR(AddFiles(flags, policy_file, note, &options));
    return options;
  };
  // Why this coordinator can never lead; the program ends as if it were told to.
  std::promise<absl::Status> useless;
  std::future<absl::Status> why_useless = useless.get_future();
  const auto start = [&]() -> absl::StatusOr<std::unique_ptr<Server>> {
    if (flags.state.is_shared()) {
      return StartElected(flags.state, prepare, [&useless](const absl::Status& why) {
        useless.set_value(why);
        ::kill(::getpid(), SIGTERM);
      });
    }
    MESHRUN_ASSIGN_OR_RETURN(Server::Options options, prepare(nullptr));
    return StartAlone(flags, std::move(options));
  };
  auto server = start();
  if (!server.ok()) return Fail(server.status(), ExitCodeOf(server.status()));
  if (const std::string warning =
          meshrun::rpc::InsecureWarning((*server)->address(), flags.security);
      !warning.empty()) {
    meshrun::log::Warning(warning);
  }
  meshrun::log::Info("serving", {{"address", (*server)->address()},
                                 {"term", (*server)->term()},
                                 {"state", DescribeState(flags.state)}});
  if (flags.ready_fd >= 0) WriteReady(flags.ready_fd, **server);
  int signal = meshrun::os::WaitForTerminationSignal();
  // A batch system signals every process of its job. The holder of our lifeline is one of them; its
  // ranks need us until it ends.
  while (lifeline) signal = meshrun::os::WaitForTerminationSignal();
  // `systemctl reload` sends it, whether or not there is a policy.
  const bool of_systemd = std::getenv("INVOCATION_ID") != nullptr;
  while (signal == SIGHUP && (reads_again || of_systemd)) {
    if (!flags.policy.empty()) ReloadPolicy(policy_file, **server);
    (*server)->ReopenAuditFile();
    signal = meshrun::os::WaitForTerminationSignal();
  }
  const bool is_useless =
      why_useless.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if (is_useless) {
    meshrun::log::Info("stopping", {{"why", "it can never lead"}});
  } else {
    meshrun::log::Info("stopping", {{"signal", meshrun::SignalName(signal)}});
  }
  // A commit under way is finished, unless its disk hangs.
  std::thread([] {
    std::this_thread::sleep_for(kStopTime);
    ::_exit(meshrun::kExitTryAgain);
  }).detach();
  (*server)->Stop();
  if (is_useless) {
    const absl::Status why = why_useless.get();
    return Fail(why, ExitCodeOf(why));
  }
  return meshrun::kExitOk;
}

}  // namespace

int main(int argc, char** argv) {
  meshrun::os::OpenMissingStandardStreams(meshrun::os::MissingOutput::kDiscardWrites, argv);
  // SIGUSR1 and SIGUSR2 too: a batch system sends them to every process of a job, for its ranks.
  meshrun::os::BlockTerminationSignals(/*user_signals=*/true);
  // We report failures ourselves, in one sentence; gRPC's logs only help gRPC developers.
  ::setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  Flags flags;
  CLI::App app(
      "meshrun-coordinator forms the world of training jobs: it knows the workers, places jobs on\n"
      "them, gives ranks their places, and keeps what happened.",
      "meshrun-coordinator");
  app.set_version_flag("--version", std::string("meshrun-coordinator ") + meshrun::kVersion);
  app.footer(kFooter);
  app.add_option("--listen", flags.listen,
                 "unix:PATH, or with TLS HOST:PORT (port 0: any free one); default: a Unix socket "
                 "of this user");
  app.add_option(
      "--http", flags.http,
      "Where the page, the JSON API and /metrics are served: as --listen, or none; default: "
      "NAME.http beside the Unix socket NAME.sock of --listen, none on TCP");
  meshrun::coordinator::AddStateFlags(app, &flags.state);
  app.add_option("--lease", flags.lease, "A worker silent for longer is lost")
      ->capture_default_str();
  app.add_option("--heartbeat", flags.heartbeat, "How often workers say that they live")
      ->capture_default_str();
  meshrun::rpc::AddSecurityFlags(app, &flags.security);
  app.add_option("--tls-deny", flags.security.deny_file,
                 "With TLS: file of certificates that are refused, a line each: serial:HEX or "
                 "name:COMMON-NAME; read again when it changes");
  app.add_option(
         "--certificate-grace", flags.certificate_grace,
         "With TLS: for so long the session of a worker goes on whose certificate has ended "
         "and is not denied")
      ->capture_default_str();
  app.add_option("--log-format", flags.log_format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app.add_option("--log-level", flags.log_level, "debug, info, warning or error")
      ->capture_default_str();
  app.add_option("--keep-jobs", flags.keep_jobs,
                 "Ended jobs to remember; those that ended first go first")
      ->check(CLI::Range(1u, 1'000'000u))
      ->capture_default_str();
  app.add_option("--keep-jobs-for", flags.keep_jobs_for,
                 "Forget a job so long after its end (default: never for its age)");
  app.add_option("--keep-jobs-at-least", flags.keep_jobs_at_least,
                 "Forget no job earlier, so that a late retry of its submit finds it")
      ->capture_default_str();
  app.add_option("--keep-job-bytes", flags.keep_job_bytes,
                 "Memory for queued, running and ended jobs in all, of which a user's may take "
                 "half of what the others leave")
      ->capture_default_str();
  app.add_option("--keep-lost-nodes", flags.keep_lost_nodes,
                 "Forget a lost node after so long; `meshrun node rm` does it at once")
      ->capture_default_str();
  app.add_option("--quarantine-after", flags.quarantine_after,
                 "A node that goes away so often without a word, within --quarantine-window, takes "
                 "no jobs until `meshrun undrain`; 0: never")
      ->check(CLI::Range(0u, 1000u))
      ->capture_default_str();
  app.add_option("--quarantine-window", flags.quarantine_window,
                 "What went before it does not count")
      ->capture_default_str();
  app.add_option("--quarantine-refusals", flags.quarantine_refusals,
                 "A node that cannot prepare so many jobs which others can, one after another, "
                 "takes no jobs until `meshrun undrain`; 0: never")
      ->check(CLI::Range(0u, 1000u))
      ->capture_default_str();
  app.add_option("--connections-per-address", flags.connections_per_address,
                 "The most TCP connections of one address; of those that make no call, 512 are "
                 "kept")
      ->check(CLI::Range(16u, 1'000'000u))
      ->capture_default_str();
  app.add_option("--keep-usage", flags.keep_usage,
                 "Ended jobs whose use `meshrun usage` shows; those that ended first go first")
      ->check(CLI::Range(1u, 10'000'000u))
      ->capture_default_str();
  app.add_option("--keep-audit", flags.keep_audit,
                 "Changes and refusals that `meshrun audit` shows; the oldest go first")
      ->check(CLI::Range(1u, 10'000'000u))
      ->capture_default_str();
  app.add_option("--audit-file", flags.audit_file,
                 "Append each change and refusal to this file, a JSON object a line; SIGHUP opens "
                 "it again");
  app.add_option("--policy", flags.policy,
                 "File of limits, weights, accounts and partitions of users (docs/operations.md, "
                 "\"Who may have how much\"); SIGHUP reads it again");
  meshrun::rpc::AddHealthFlags(app, &flags.health_flags);
  app.add_option("--record-events", flags.record_events,
                 "Write every event of the state machine to this file, for replay");
  app.add_option(
      "--ready-fd", flags.ready_fd,
      "Once serving, write {\"address\":...,\"term\":...} to this descriptor and close it");
  app.add_option("--lifeline-fd", flags.lifeline_fd, "Stop when the other end of this pipe closes");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    return Fail(fmt::format("{}: --help shows how it is called", error.what()),
                meshrun::kExitUsage);
  }
  if (const absl::Status wrong = CheckStateFlags(&flags.state); !wrong.ok()) {
    return Fail(wrong, meshrun::kExitUsage);
  }
  const auto lease = meshrun::ParseDuration(flags.lease);
  if (!lease.ok())
    return Fail(fmt::format("--lease: {}", std::string(lease.status().message())), 2);
  const auto heartbeat = meshrun::ParseDuration(flags.heartbeat);
  if (!heartbeat.ok()) {
    return Fail(fmt::format("--heartbeat: {}", std::string(heartbeat.status().message())), 2);
  }
  if (heartbeat->count() == 0) {
    return Fail(
        fmt::format("--heartbeat {}: write a time above 0, for example 1s", flags.heartbeat),
        meshrun::kExitUsage);
  }
  if (*heartbeat * 2 > *lease) {
    return Fail(fmt::format("--heartbeat {} does not fit at least twice into --lease {}",
                            flags.heartbeat, flags.lease),
                meshrun::kExitUsage);
  }
  const auto grace = meshrun::ParseDuration(flags.certificate_grace);
  if (!grace.ok()) {
    return Fail(fmt::format("--certificate-grace: {}", std::string(grace.status().message())),
                meshrun::kExitUsage);
  }
  if (*grace > kLongestGrace) {
    return Fail(
        fmt::format("--certificate-grace {}: write a year at most, 8760h", flags.certificate_grace),
        meshrun::kExitUsage);
  }
  flags.security.certificate_grace = *grace;
  const auto retention = RetentionOf(flags);
  if (!retention.ok()) return Fail(retention.status(), meshrun::kExitUsage);
  const auto quarantine = QuarantineOf(flags);
  if (!quarantine.ok()) return Fail(quarantine.status(), meshrun::kExitUsage);
  const auto health = meshrun::rpc::ParseHealthFlags(flags.health_flags);
  if (!health.ok()) return Fail(health.status(), meshrun::kExitUsage);
  flags.health = *health;
  meshrun::log::Level level;
  if (const absl::Status status = meshrun::log::ParseLevel(flags.log_level, &level); !status.ok()) {
    return Fail(meshrun::Annotate(status, "--log-level"), meshrun::kExitUsage);
  }
  meshrun::log::Configure(
      "coordinator",
      flags.log_format == "json" ? meshrun::log::Format::kJson : meshrun::log::Format::kText,
      level);
  return Serve(flags, *lease, *heartbeat, *retention, *quarantine);
}
