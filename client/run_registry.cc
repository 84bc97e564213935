#include "client/run_registry.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "client/held_file.h"
#include "core/os/files.h"
#include "core/os/private_directory.h"
#include "core/parse_integer.h"
#include "core/rpc/default_address.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

constexpr char kSuffix[] = ".run";
// Behind the name of a file that is being made.
constexpr char kUnnamed[] = ".new";
constexpr size_t kFields = 8;

// Fields in this order, each with a zero byte behind it: paths hold any other, and JSON holds UTF-8
// alone.
std::string Written(const RegisteredRun& run) {
  std::string out;
  for (const std::string& field :
       {run.job_id, std::to_string(run.pid), run.address, run.tls.cert, run.tls.key, run.tls.ca,
        run.node, std::string(run.hosts ? "1" : "0")}) {
    out += field + '\0';
  }
  return out;
}

// Absent: not a file of ours.
std::optional<RegisteredRun> Parsed(const std::string& text) {
  std::vector<std::string> fields;
  for (size_t from = 0; from < text.size();) {
    const size_t end = std::min(text.find('\0', from), text.size());
    fields.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  if (fields.size() != kFields || fields[0].empty()) return std::nullopt;
  const auto pid = ParseInteger<pid_t>(fields[1]);
  if (!pid || *pid <= 0) return std::nullopt;
  return RegisteredRun{.job_id = fields[0],
                       .pid = *pid,
                       .address = fields[2],
                       .tls = {.cert = fields[3], .key = fields[4], .ca = fields[5]},
                       .node = fields[6],
                       .hosts = fields[7] == "1"};
}

}  // namespace

absl::StatusOr<std::string> RunRegistration::DefaultDirectory() {
  MESHRUN_ASSIGN_OR_RETURN(const std::string address, rpc::DefaultListenAddress());
  const std::string socket = address.substr(address.find(':') + 1);
  return socket.substr(0, socket.rfind('/')) + "/runs";
}

absl::StatusOr<RunRegistration> RunRegistration::Add(const std::string& directory,
                                                     const RegisteredRun& run) {
  MESHRUN_RETURN_IF_ERROR(os::MakePrivateDirectory(directory));
  RunRegistration out;
  const std::string path = fmt::format("{}/{}.{}{}", directory, run.job_id, run.pid, kSuffix);
  // Locked before it has its name: no reader takes it for one that was left.
  const std::string unnamed = path + kUnnamed;
  out.lock_ = TryLock(unnamed, O_CREAT | O_EXCL);
  if (!out.lock_) return os::ErrnoStatus(errno, unnamed);
  const std::string text = Written(run);
  if (::write(out.lock_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::rename(unnamed.c_str(), path.c_str()) != 0) {
    const absl::Status why = os::ErrnoStatus(errno, path);
    ::unlink(unnamed.c_str());
    return why;
  }
  out.path_ = path;
  return out;
}

RunRegistration::RunRegistration(RunRegistration&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {}

RunRegistration& RunRegistration::operator=(RunRegistration&& other) noexcept {
  if (this != &other) {
    Remove();
    path_ = std::exchange(other.path_, {});
    lock_ = std::move(other.lock_);
  }
  return *this;
}

void RunRegistration::Remove() {
  if (!path_.empty()) ::unlink(path_.c_str());
  path_.clear();
  lock_.reset();
}

std::vector<RegisteredRun> RegisteredRuns(const std::string& directory) {
  std::vector<RegisteredRun> out;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = entry->path();
    const bool unnamed = path.ends_with(kUnnamed);
    struct stat info;
    if ((!unnamed && !path.ends_with(kSuffix)) || ::lstat(path.c_str(), &info) != 0) continue;
    if (unnamed && Age(info) < kYoungFile) continue;
    if (const os::UniqueFd left = TryLock(path, 0, LOCK_SH)) {
      ::unlink(path.c_str());
      continue;
    }
    if (unnamed) continue;
    const auto text = os::ReadFile(path);
    if (!text.ok()) continue;
    if (auto run = Parsed(*text)) out.push_back(*std::move(run));
  }
  std::sort(out.begin(), out.end(), [](const RegisteredRun& a, const RegisteredRun& b) {
    return std::tie(a.job_id, a.pid) < std::tie(b.job_id, b.pid);
  });
  return out;
}

absl::StatusOr<const RegisteredRun*> FindRun(const std::vector<RegisteredRun>& runs,
                                             const std::string& job, const JobIds& others) {
  const RegisteredRun* found = nullptr;
  std::set<std::string> ids;
  for (const RegisteredRun& run : runs) {
    if (job.empty() || !run.job_id.starts_with(job)) continue;
    if (run.job_id == job) return &run;
    if (found == nullptr) found = &run;
    ids.insert(run.job_id);
  }
  if (found == nullptr) return found;
  for (std::string& id : others(job)) {
    if (id == job) return nullptr;
    ids.insert(std::move(id));
  }
  if (ids.size() == 1) return found;
  return absl::InvalidArgumentError(
      fmt::format("'{}' begins the ids of {} jobs: {}; write more of it", job, ids.size(),
                  fmt::join(ids, ", ")));
}

}  // namespace meshrun::client
