// meshrun-worker: the daemon of one host; `meshrun-worker supervise` is the supervisor of one
// generation, and `meshrun-worker release-cgroup` is for systemd before 254.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "core/exit_codes.h"
#include "core/os/process.h"
#include "core/rpc/channel.h"
#include "core/utf8.h"
#include "worker/cgroups/cgroups.h"
#include "worker/daemon.h"
#include "worker/flags.h"
#include "worker/supervisor/supervisor.h"

namespace {

// What is wrong with the call, and what is wrong with the host.
int ExitCodeOf(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsPermissionDenied(status)
             ? meshrun::kExitUsage
             : meshrun::kExitJobFailed;
}

int Say(const absl::Status& status) {
  std::string_view text(status.message().data(), status.message().size());
  // What refuses a plaintext address names itself.
  constexpr std::string_view kName = "meshrun-worker: ";
  if (text.starts_with(kName)) text.remove_prefix(kName.size());
  // fmt::print would throw where stderr has no room.
  std::fputs(fmt::format("{}{}\n", kName, meshrun::EscapeControls(text)).c_str(), stderr);
  return ExitCodeOf(status);
}

}  // namespace

int main(int argc, char** argv) {
  meshrun::os::OpenMissingStandardStreams(meshrun::os::MissingOutput::kDiscardWrites, argv);
  // Before anything else, so that a supervisor's start does not pay for what only the daemon needs.
  if (argc > 1 && std::string_view(argv[1]) == "supervise") {
    return meshrun::worker::SuperviseMain(argc, argv);
  }
  if (argc > 1 && std::string_view(argv[1]) == "release-cgroup") {
    const absl::Status released = meshrun::worker::ReleaseControllers();
    return released.ok() ? meshrun::kExitOk : Say(released);
  }
  // We report failures ourselves; gRPC's logs only help gRPC developers.
  ::setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // Before gRPC starts its threads, so that the daemon's loop alone receives them. SIGUSR1 and
  // SIGUSR2 too: a batch system sends them to every process of a job, for its ranks.
  meshrun::os::BlockTerminationSignals(/*user_signals=*/true);
  int exit_code = meshrun::kExitOk;
  auto options = meshrun::worker::ParseFlags(argc, argv, &exit_code);
  if (!options) return exit_code;
  // Health and reflection on the agent's socket too: a pod's probe asks there.
  meshrun::rpc::EnableServerPlugins();
  auto daemon = meshrun::worker::Daemon::Create(*std::move(options));
  if (!daemon.ok()) return Say(daemon.status());
  const absl::Status status = (*daemon)->Run();
  return status.ok() ? meshrun::kExitOk : Say(status);
}
