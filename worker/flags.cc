#include "worker/flags.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "core/exit_codes.h"
#include "core/labels.h"
#include "core/log.h"
#include "core/os/process.h"
#include "core/rpc/health_flags.h"
#include "core/rpc/security_flags.h"
#include "core/status.h"
#include "core/text.h"
#include "core/utf8.h"
#include "core/version.h"

namespace meshrun::worker {
namespace {

std::string DefaultStateDir() {
  // systemd's StateDirectory=.
  if (const char* const own = std::getenv("STATE_DIRECTORY")) return own;
  if (const char* const xdg = std::getenv("XDG_STATE_HOME"))
    return std::string(xdg) + "/meshrun/worker";
  const char* const home = std::getenv("HOME");
  return std::string(home != nullptr ? home : "/var/lib") + "/.local/state/meshrun/worker";
}

int Wrong(const absl::Status& status) {
  const std::string text = EscapeControls({status.message().data(), status.message().size()});
  std::fputs(fmt::format("meshrun-worker: {}\n", text).c_str(), stderr);
  return kExitUsage;
}

absl::Status TakeDuration(std::string_view flag, const std::string& text,
                          std::chrono::nanoseconds* value) {
  const auto parsed = ParseDuration(text);
  if (!parsed.ok()) return Annotate(parsed.status(), flag);
  *value = *parsed;
  return absl::OkStatus();
}

// 0 would be over at once.
absl::Status TakeTimeAbove0(std::string_view flag, const std::string& text,
                            std::chrono::nanoseconds* value) {
  MESHRUN_RETURN_IF_ERROR(TakeDuration(flag, text, value));
  if (value->count() > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} {}: write a time above 0, for example 5m", flag, text));
}

absl::Status TakeBytes(std::string_view flag, const std::string& text, uint64_t* value) {
  const auto parsed = ParseBytes(text);
  if (!parsed.ok()) return Annotate(parsed.status(), flag);
  *value = *parsed;
  return absl::OkStatus();
}

// "memory,pids", or "none".
absl::StatusOr<std::set<std::string>> ParseLimits(const std::string& text) {
  std::set<std::string> limits;
  if (text == "none") return limits;
  std::stringstream stream(text);
  for (std::string limit; std::getline(stream, limit, ',');) {
    if (std::find(std::begin(kAllLimits), std::end(kAllLimits), limit) == std::end(kAllLimits)) {
      return absl::InvalidArgumentError(fmt::format("'{}' is not a limit: write none, or of {}",
                                                    limit, fmt::join(kAllLimits, ", ")));
    }
    limits.insert(limit);
  }
  return limits;
}

// A descriptor that the caller handed over.
os::UniqueFd TakeFd(int fd) {
  if (fd >= 0) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return os::UniqueFd(fd);
}

}  // namespace

std::optional<DaemonOptions> ParseFlags(int argc, char** argv, int* exit_code) {
  DaemonOptions options;
  options.state_dir = DefaultStateDir();
  std::string memory, ports, gpu_ids,
      orphan_timeout = "5m", stop_timeout = "10s", keep_logs = "1G", keep_logs_for,
      file_timeout = "10s", log_limit = "1G", log_format = "text", log_level = "info",
      health_check_timeout = "1m", health_interval = "30s", least_free = "32M",
      running_logs = "16G", limits = "memory,cpu,pids,devices";
  uint32_t cores = 0, slots = 0;
  std::vector<std::string> labels, addresses;
  std::string tee = "0", redirects = "0";
  std::string terminal;
  int ready_fd = -1, lifeline_fd = -1, stdin_fd = -1;

  CLI::App app(
      "The meshrun daemon of one host: offers its slots and GPUs to a coordinator and runs ranks.",
      "meshrun-worker");
  app.footer(
      "Examples:\n"
      "  meshrun-worker                            the coordinator of this user on this host\n"
      "  meshrun-worker --coordinator head:7480 --tls-cert node.pem --tls-key node.key --tls-ca "
      "ca.pem");
  app.set_version_flag("--version", kVersion);
  app.add_option("--coordinator", options.coordinator,
                 "Where the coordinator listens: unix:PATH, or HOST:PORT with TLS; of several "
                 "coordinators all, with commas (default: the Unix socket of this user)")
      ->envname("MESHRUN_COORDINATOR");
  app.add_option("--state-dir", options.state_dir,
                 "This worker's own directory: identity, sockets, logs")
      ->capture_default_str();
  app.add_flag("--run-as-submitter", options.run_as_submitter,
               "As root: run ranks as the user who submitted their job");
  app.add_option("--join-cluster", options.join_cluster,
                 "Leave the cluster that the state directory belongs to for the one with this id");
  app.add_option("--name", options.name, "What people call this node (default: the host's name)");
  app.add_option("--address", addresses,
                 "Where ranks on other hosts reach this one, the preferred address first; a list "
                 "with commas, or repeated (default: as the coordinator sees it, then its other "
                 "interfaces)")
      ->allow_extra_args(false);
  auto* const cores_option =
      app.add_option("--cores", cores,
                     "Cores of this host that its ranks share, where other workers have the rest "
                     "(default: those of the affinity and the cgroup)")
          ->check(CLI::Range(1u, 1u << 20));
  auto* const slots_option =
      app.add_option("--slots", slots, "CPU slots to offer (default: the cores, at least 8)")
          ->check(CLI::Range(1u, 1u << 20));
  app.add_option("--gpu-ids", gpu_ids,
                 "GPUs to offer, by their numbers or UUIDs, for example 1,3,5 (default: all that "
                 "CUDA_VISIBLE_DEVICES leaves)");
  app.add_option("--memory", memory,
                 "Memory to offer, for example 64G (default: all of the host's)");
  app.add_option("--port-range", ports, "Ports for MASTER_PORT (default: 20000-29999)");
  app.add_option("--label", labels,
                 "NAME=VALUE or NAME, for jobs that are submitted with --constraint; repeatable")
      ->allow_extra_args(false);
  app.add_option("--jobs-dir", options.jobs_dir,
                 "Where the jobs that ship with meshrun are installed");
  app.add_option("--orphan-timeout", orphan_timeout,
                 "Without a coordinator for so long, ranks are stopped")
      ->capture_default_str();
  app.add_option("--stop-timeout", stop_timeout,
                 "When stopped, wait so long beyond a job's grace for what does not end")
      ->capture_default_str();
  app.add_option("--file-timeout", file_timeout,
                 "A job's working directory, program or log directory that does not answer for so "
                 "long keeps that job off this host")
      ->capture_default_str();
  app.add_option("--http", options.http,
                 "Where /metrics and /healthz are served: unix:PATH, or with TLS HOST:PORT "
                 "(default: nowhere)");
  app.add_flag("--metrics-job-label", options.metrics_job_label,
               "Ranks' metrics name their job; each job is a new series for Prometheus");
  app.add_option("--health-check", options.health_check,
                 "A program of yours that must exit with 0 for this host to take jobs; its last "
                 "line is shown otherwise");
  app.add_option("--health-check-timeout", health_check_timeout, "What it has for that")
      ->capture_default_str();
  app.add_option("--health-interval", health_interval,
                 "Pause between two checks of this host: state directory, ports, GPUs, "
                 "--health-check (0: no checks)")
      ->capture_default_str();
  app.add_option("--least-free", least_free,
                 "Bytes that must be free in the state directory for this host to take jobs")
      ->capture_default_str();
  app.add_option("--limits", limits,
                 "What a job is held to by a cgroup, as far as this host has them, a list with "
                 "commas: memory, cpu (its share), cpu-quota (never more than its cores), pids, "
                 "devices (no GPU but its own); or none")
      ->capture_default_str();
  app.add_option("--pids-per-rank", options.pids_per_rank,
                 "Processes and threads that a job may have for each of its ranks here")
      ->check(CLI::Range(uint64_t{16}, uint64_t{1} << 22))
      ->capture_default_str();
  app.add_option("--log-limit", log_limit,
                 "Bytes to keep of a running rank's stdout, and of its stderr: of more the oldest "
                 "go (0: keep all)")
      ->capture_default_str();
  app.add_option("--running-logs", running_logs,
                 "Bytes that the output of all running ranks may take on this host: each stream "
                 "has its share by slots, at most --log-limit (0: no limit)")
      ->capture_default_str();
  app.add_option("--keep-logs", keep_logs,
                 "Bytes of logs to keep of generations that have ended, in blocks of the disk: of "
                 "more, the user with the most gives; the newest generation stays always")
      ->capture_default_str();
  app.add_option("--keep-logs-count", options.keep_logs.keep_generations,
                 "Ended generations of which logs are kept")
      ->check(CLI::Range(0u, 1u << 20))
      ->capture_default_str();
  app.add_option("--keep-logs-for", keep_logs_for,
                 "Remove logs of generations that ended longer ago, for example 720h (default: age "
                 "does not matter)");
  // For `meshrun run`, whose cluster has one job on one host: a rank's number is its local one.
  app.add_option("--rank-log-dir", options.log_layout.directory,
                 "Output that is chosen goes to DIR/<job>/attempt_<n>/<rank>/, and is kept whole")
      ->group("");
  app.add_option("--rank-log-tee", tee)->group("");
  app.add_option("--ranks", options.ranks)->group("");
  app.add_option("--rank-log-redirects", redirects)->group("");
  app.add_option("--rank-stdin-fd", stdin_fd, "One rank reads from this descriptor")->group("");
  app.add_option("--rank-stdin-rank", options.stdin_rank)->group("");
  app.add_option("--rank-stdin-directory", options.stdin_directory,
                 "Each rank reads from the FIFO that has its number")
      ->group("");
  app.add_option("--rank-terminal", terminal,
                 "Ranks write to pseudo-terminals of COLUMNSxROWS, and not to pipes")
      ->group("");
  app.add_flag("--kill-at-once-on-lifeline", options.kill_at_once,
               "Ranks end with this process, without waiting for the lease");
  app.add_option("--ready-fd", ready_fd,
                 "Write one JSON line there when the coordinator has welcomed us");
  app.add_option("--lifeline-fd", lifeline_fd, "End of this pipe: kill everything and end");
  app.add_option("--lifeline-of", options.lifeline_of, "Who holds it, for sentences")->group("");
  app.add_option("--log-format", log_format, "text or json")
      ->check(CLI::IsMember({"text", "json"}));
  app.add_option("--log-level", log_level, "debug, info, warning or error");
  rpc::HealthFlags health_flags;
  rpc::AddHealthFlags(app, &health_flags);
  rpc::AddSecurityFlags(app, &options.security);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    *exit_code = error.get_exit_code() == 0
                     ? app.exit(error)
                     : Wrong(absl::InvalidArgumentError(
                           fmt::format("{}: --help shows how it is called", error.what())));
    return std::nullopt;
  }

  const auto wrong = [exit_code](const absl::Status& status) {
    *exit_code = Wrong(status);
    return std::nullopt;
  };
  log::Level level = log::Level::kInfo;
  if (const auto status = log::ParseLevel(log_level, &level); !status.ok())
    return wrong(Annotate(status, "--log-level"));
  log::Configure("worker", log_format == "json" ? log::Format::kJson : log::Format::kText, level);
  auto kept = ParseLimits(limits);
  if (!kept.ok()) return wrong(Annotate(kept.status(), "--limits"));
  options.limits = *std::move(kept);
  const auto health = rpc::ParseHealthFlags(health_flags);
  if (!health.ok()) return wrong(health.status());
  options.health = *health;
  if (*cores_option) options.cores = cores;
  if (*slots_option) options.slots = slots;
  if (!gpu_ids.empty()) {
    auto ids = ParseGpuIds(gpu_ids);
    if (!ids.ok()) return wrong(Annotate(ids.status(), "--gpu-ids"));
    options.gpu_ids = *std::move(ids);
  }
  for (const std::string& text : labels) {
    auto label = ParseLabel(text);
    if (!label.ok()) return wrong(Annotate(label.status(), "--label"));
    options.labels.insert(*std::move(label));
  }
  auto own = ParseAddresses(addresses);
  if (!own.ok()) return wrong(Annotate(own.status(), "--address"));
  options.addresses = *std::move(own);
  if (!ports.empty()) {
    const auto interval = ParsePortInterval(ports);
    if (!interval.ok()) return wrong(Annotate(interval.status(), "--port-range"));
    options.ports = *interval;
  }
  uint64_t memory_bytes = 0;
  for (const absl::Status& status :
       {memory.empty() ? absl::OkStatus() : TakeBytes("--memory", memory, &memory_bytes),
        TakeTimeAbove0("--orphan-timeout", orphan_timeout, &options.orphan_timeout),
        TakeDuration("--stop-timeout", stop_timeout, &options.stop_timeout),
        TakeTimeAbove0("--file-timeout", file_timeout, &options.file_timeout),
        TakeTimeAbove0("--health-check-timeout", health_check_timeout,
                       &options.health_check_timeout),
        TakeDuration("--health-interval", health_interval, &options.host_checks.interval),
        TakeBytes("--least-free", least_free, &options.least_free_bytes),
        TakeBytes("--log-limit", log_limit, &options.log_limit_bytes),
        TakeBytes("--running-logs", running_logs, &options.running_logs_bytes),
        TakeBytes("--keep-logs", keep_logs, &options.keep_logs.keep_bytes),
        keep_logs_for.empty()
            ? absl::OkStatus()
            : TakeDuration("--keep-logs-for", keep_logs_for, &options.keep_logs.keep_for)}) {
    if (!status.ok()) return wrong(status);
  }
  if (!memory.empty()) options.memory_bytes = memory_bytes;
  if (!options.health_check.empty()) {
    const char* const path = std::getenv("PATH");
    auto found = os::FindCommand(options.health_check, std::filesystem::current_path().string(),
                                 path == nullptr ? "" : path);
    if (!found.ok()) return wrong(Annotate(found.status(), "--health-check"));
    options.health_check = *std::move(found);
  }
  for (const auto& [text, choice] : {std::pair(&tee, &options.log_layout.tee),
                                     std::pair(&redirects, &options.log_layout.redirects)}) {
    auto parsed = StreamChoice::Parse(*text);
    if (!parsed.ok()) return wrong(parsed.status());
    *choice = *std::move(parsed);
  }
  if (!terminal.empty()) {
    options.terminal = ParseTerminalSize(terminal);
    if (!options.terminal) {
      return wrong(absl::InvalidArgumentError(
          fmt::format("--rank-terminal {}: write COLUMNSxROWS, for example 80x24", terminal)));
    }
  }
  options.stdin_fd = TakeFd(stdin_fd);
  options.ready_fd = TakeFd(ready_fd);
  options.lifeline_fd = TakeFd(lifeline_fd);
  return options;
}

}  // namespace meshrun::worker
