// meshrun-coordinator: the control plane in one process.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "coordinator/server.h"
#include "coordinator/state_store/sqlite_state_store.h"
#include "core/exit_codes.h"
#include "core/log.h"
#include "core/os/process.h"
#include "core/rpc/tls_flags.h"
#include "core/text.h"
#include "core/version.h"

namespace {

using meshrun::coordinator::Server;
using meshrun::coordinator::SqliteStateStore;

constexpr char kFooter[] = R"(Examples:
  One machine, default address, state kept across restarts:
    meshrun-coordinator --state-dir /var/lib/meshrun/coordinator

  Reachable from other machines (mutual TLS is required off the loopback):
    meshrun-coordinator --listen 0.0.0.0:7480 --state-dir /var/lib/meshrun/coordinator \
        --tls-cert coordinator.crt --tls-key coordinator.key --tls-ca ca.crt

  For a test, on any free port, nothing kept:
    meshrun-coordinator --listen 127.0.0.1:0 --ephemeral

Then start a worker on each host:  meshrun-worker --coordinator HOST:7480 --state-dir DIR
and look at the cluster:           meshrun nodes

A restarted coordinator takes running jobs over as they are: training does not notice.
Exit codes: 0 stopped by a signal, 2 wrong call, 75 could not serve (port taken, state in use).)";

struct Flags {
  std::string listen = "127.0.0.1:7480";
  std::string state_dir;
  bool ephemeral = false;
  std::string lease = "5s";
  std::string heartbeat = "1s";
  int ready_fd = -1;
  int lifeline_fd = -1;
  std::string log_format = "text";
  std::string log_level = "info";
  std::string record_events;
  meshrun::rpc::TlsFiles tls;
};

constexpr std::string_view kPrefix = "meshrun-coordinator: ";

int Fail(std::string_view why, int code) {
  if (why.starts_with(kPrefix)) why.remove_prefix(kPrefix.size());
  fmt::print(stderr, "{}{}\n", kPrefix, why);
  return code;
}
int Fail(const absl::Status& why, int code) { return Fail(std::string(why.message()), code); }

// Says where we are to whoever started us.
void WriteReady(int fd, const Server& server) {
  const std::string line =
      nlohmann::json({{"address", server.address()}, {"term", server.term()}}).dump() + "\n";
  // A starter that has gone is no reason to stop.
  if (::write(fd, line.data(), line.size()) < 0) {
    meshrun::log::Warning("--ready-fd cannot be written", {{"fd", fd}});
  }
  ::close(fd);
}

int Serve(const Flags& flags, std::chrono::milliseconds lease,
          std::chrono::milliseconds heartbeat) {
  // A broken pipe to whoever started us must not end the control plane.
  std::signal(SIGPIPE, SIG_IGN);
  std::optional<meshrun::os::Lifeline> lifeline;
  if (flags.lifeline_fd >= 0) {
    // At once: nothing of an ephemeral state is worth keeping, and the durable one is on disk.
    lifeline.emplace(meshrun::os::UniqueFd(flags.lifeline_fd), [] { ::_exit(meshrun::kExitOk); });
  }
  Server::Options options;
  options.listen = flags.listen;
  options.tls = flags.tls;
  options.lease = lease;
  options.heartbeat = heartbeat;
  options.record_path = flags.record_events;
  if (!flags.ephemeral) {
    auto store = SqliteStateStore::Open(flags.state_dir);
    if (!store.ok()) return Fail(store.status(), meshrun::kExitTryAgain);
    options.store = *std::move(store);
  }
  auto server = Server::Start(std::move(options));
  if (!server.ok()) {
    const bool usage =
        absl::IsInvalidArgument(server.status()) || absl::IsNotFound(server.status());
    return Fail(server.status(), usage ? meshrun::kExitUsage : meshrun::kExitTryAgain);
  }
  meshrun::log::Info("serving", {{"address", (*server)->address()},
                                 {"term", (*server)->term()},
                                 {"state", flags.ephemeral ? "in memory" : flags.state_dir}});
  if (flags.ready_fd >= 0) WriteReady(flags.ready_fd, **server);
  const int signal = meshrun::os::WaitForTerminationSignal();
  meshrun::log::Info("stopping", {{"signal", meshrun::os::SignalName(signal)}});
  (*server)->Stop();
  return meshrun::kExitOk;
}

}  // namespace

int main(int argc, char** argv) {
  meshrun::os::BlockTerminationSignals();
  // What fails is said by us, in one sentence; gRPC's own lines help only who debugs gRPC.
  ::setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  Flags flags;
  CLI::App app(
      "meshrun-coordinator forms the world of training jobs: it knows the workers, places jobs on\n"
      "them, gives ranks their places, and keeps what happened.",
      "meshrun-coordinator");
  app.set_version_flag("--version", std::string("meshrun-coordinator ") + meshrun::kVersion);
  app.footer(kFooter);
  app.add_option("--listen", flags.listen, "host:port (port 0: any free one) or unix:/path")
      ->capture_default_str();
  auto* state_dir =
      app.add_option("--state-dir", flags.state_dir,
                     "Directory of jobs, nodes and events; one coordinator at a time");
  app.add_flag("--ephemeral", flags.ephemeral, "Keep the state in memory only")
      ->excludes(state_dir);
  app.add_option("--lease", flags.lease, "A worker silent for longer is lost")
      ->capture_default_str();
  app.add_option("--heartbeat", flags.heartbeat, "How often workers say that they live")
      ->capture_default_str();
  meshrun::rpc::AddTlsFlags(app, &flags.tls);
  app.add_option("--log-format", flags.log_format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app.add_option("--log-level", flags.log_level, "debug, info, warning or error")
      ->capture_default_str();
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
  if (!flags.ephemeral && flags.state_dir.empty()) {
    return Fail("nowhere to keep the state: pass --state-dir DIR, or --ephemeral to keep none",
                meshrun::kExitUsage);
  }
  const auto lease = meshrun::ParseDuration(flags.lease);
  if (!lease.ok())
    return Fail(fmt::format("--lease: {}", std::string(lease.status().message())), 2);
  const auto heartbeat = meshrun::ParseDuration(flags.heartbeat);
  if (!heartbeat.ok()) {
    return Fail(fmt::format("--heartbeat: {}", std::string(heartbeat.status().message())), 2);
  }
  if (*heartbeat * 2 > *lease || heartbeat->count() == 0) {
    return Fail(fmt::format("--heartbeat {} does not fit at least twice into --lease {}",
                            flags.heartbeat, flags.lease),
                meshrun::kExitUsage);
  }
  meshrun::log::Level level;
  if (const absl::Status status = meshrun::log::ParseLevel(flags.log_level, &level); !status.ok()) {
    return Fail(status, meshrun::kExitUsage);
  }
  meshrun::log::Configure(
      "coordinator",
      flags.log_format == "json" ? meshrun::log::Format::kJson : meshrun::log::Format::kText,
      level);
  return Serve(flags, *lease, *heartbeat);
}
