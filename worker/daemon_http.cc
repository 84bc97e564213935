// What a daemon tells Prometheus.
#include <sys/statvfs.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "core/log.h"
#include "core/os/boot_time.h"
#include "core/status.h"
#include "worker/daemon.h"

namespace meshrun::worker {
namespace {

constexpr std::chrono::seconds kLogSpaceInterval(60);
// Files that are counted at most; beyond them the sum is too small.
constexpr size_t kMostLogFiles = 200'000;

// Blocks as long as the file system does. Absent: it cannot be asked.
std::optional<LogSpace> LogSpaceOf(const std::string& directory) {
  struct statvfs system = {};
  if (::statvfs(directory.c_str(), &system) != 0) return std::nullopt;
  LogSpace space;
  space.free_bytes = uint64_t{system.f_bavail} * system.f_frsize;
  space.size_bytes = uint64_t{system.f_blocks} * system.f_frsize;
  std::error_code error;
  size_t files = 0;
  namespace fs = std::filesystem;
  for (fs::recursive_directory_iterator it(directory, fs::directory_options::none, error), end;
       !error && it != end && files < kMostLogFiles; it.increment(error)) {
    if (!it->is_regular_file(error) || error) continue;
    const uint64_t size = it->file_size(error);
    if (!error) space.log_bytes += size;
    // A file that has gone meanwhile counts for nothing.
    error.clear();
    ++files;
  }
  return space;
}

}  // namespace

absl::Status Daemon::BeginHttp() {
  if (options_.http.empty() || options_.http == "none") return absl::OkStatus();
  auto http =
      HostHttp::Start({.listen = options_.http,
                       .security = options_.security,
                       .with_job = options_.metrics_job_label,
                       .has_gpus = resources_.gpus_size() > 0,
                       .health = *health_,
                       .post = [this](std::function<void()> task) { loop_.Post(std::move(task)); },
                       .measure = [this] { return Measure(); }});
  if (!http.ok()) return Annotate(http.status(), "--http");
  http_ = *std::move(http);
  log::Info("serving metrics", {{"address", http_->address()}});
  LookAtLogSpace();
  return absl::OkStatus();
}

HostMeasures Daemon::Measure() const {
  HostMeasures measures;
  measures.slots = resources_.slots();
  measures.ranks = generations_->RunningRanks();
  measures.connected = session_->open();
  measures.lease_age = os::BootTimeNow() - session_->Contact();
  measures.problems = host_checks_ == nullptr ? 0 : host_checks_->problems().size();
  measures.term = session_->term();
  return measures;
}

void Daemon::LookAtLogSpace() {
  // The thread may outlive this daemon and its port, so the loop tells the port.
  const auto space = std::make_shared<std::optional<LogSpace>>();
  files_.Run(
      "log space", [space, root = options_.keep_logs.root] { *space = LogSpaceOf(root); },
      [this, space] {
        if (*space) http_->SetLogSpace(**space);
        loop_.After(kLogSpaceInterval, [this] { LookAtLogSpace(); });
      });
}

}  // namespace meshrun::worker
