#include "worker/logs/retention.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <system_error>
#include <tuple>
#include <vector>

#include "core/log.h"
#include "core/os/files.h"
#include "core/text.h"

namespace meshrun::worker {
namespace {

namespace fs = std::filesystem;

constexpr char kOwner[] = "owner";
constexpr char kRemoved[] = ".removed";
// A job that has more than this part of all bytes gives before the others of its user.
constexpr uint64_t kJobsShare = 4;

struct Logs {
  std::string path;
  std::string job_id;
  std::string user;
  uint64_t bytes = 0;
  // Time of the file that was written last.
  fs::file_time_type written;
};

Logs Measure(const fs::path& directory) {
  constexpr uint64_t kBlock = 512;
  std::error_code error;
  Logs out = {.path = directory.string(),
              .job_id = directory.parent_path().filename().string(),
              .written = fs::last_write_time(directory, error)};
  const auto add = [&out, &error](const fs::directory_entry& file) {
    struct stat info;
    if (::lstat(file.path().c_str(), &info) == 0) out.bytes += info.st_blocks * kBlock;
    out.written = std::max(out.written, file.last_write_time(error));
  };
  for (const auto& file : fs::directory_iterator(directory, error)) {
    add(file);
    // Pictures of a rank. Nothing of ours lies deeper.
    if (!file.is_directory(error) || file.is_symlink(error)) continue;
    for (const auto& picture : fs::directory_iterator(file.path(), error)) add(picture);
  }
  return out;
}

// Removes what is too old of what is remembered of removed logs, or too much.
void Forget(std::vector<std::pair<fs::file_time_type, std::string>> remembered) {
  std::sort(remembered.rbegin(), remembered.rend());
  const auto since = fs::file_time_type::clock::now() - kRememberRemoved;
  std::error_code error;
  for (size_t i = 0; i < remembered.size(); ++i) {
    const auto& [at, path] = remembered[i];
    if (i < kMostRemembered && at >= since) continue;
    fs::remove(path, error);
    // Only what is empty goes.
    const fs::path job = fs::path(path).parent_path();
    if (std::distance(fs::directory_iterator(job, error), {}) == 1) fs::remove(job / kOwner, error);
    fs::remove(job, error);
  }
}

std::vector<Logs> EndedLogs(const std::string& root, const LogsInUse& in_use) {
  std::vector<Logs> ended;
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, std::string>> remembered;
  for (const auto& job : fs::directory_iterator(root, error)) {
    if (!job.is_directory(error)) continue;
    const absl::StatusOr<std::string> owner = os::ReadFile((job.path() / kOwner).string());
    bool empty = true;
    for (const auto& entry : fs::directory_iterator(job.path(), error)) {
      if (entry.is_directory(error)) {
        empty = false;
        if (in_use.Contains(entry.path().string())) continue;
        ended.push_back(Measure(entry.path()));
        if (owner.ok()) ended.back().user = *owner;
      } else if (entry.path().extension() == kRemoved) {
        empty = false;
        remembered.push_back({entry.last_write_time(error), entry.path().string()});
      } else if (entry.path().filename() != kOwner) {
        // A file that is being written; an old one is left from a daemon that was killed.
        const bool old =
            fs::file_time_type::clock::now() - entry.last_write_time(error) > std::chrono::hours(1);
        if (!old || !fs::remove(entry.path(), error)) empty = false;
      }
    }
    if (!empty) continue;
    fs::remove(job.path() / kOwner, error);
    // Fails when a generation's directory was made meanwhile.
    fs::remove(job.path(), error);
  }
  Forget(std::move(remembered));
  return ended;
}

bool Remove(const Logs& logs, const std::string& why) {
  const std::time_t now = std::time(nullptr);
  const std::string text =
      fmt::format("removed at {:%Y-%m-%d %H:%M:%S} UTC: {}\n", fmt::gmtime(now), why);
  // Before the files: whoever does not find them finds the reason.
  const absl::Status said =
      os::WriteFileAtomically(logs.path + kRemoved, text, 0600, /*sync=*/false);
  // A full disk must not keep logs from being removed.
  if (!said.ok()) log::Warning("cannot write that logs were removed", {{"error", said}});
  const absl::Status status = os::RemoveTree(logs.path);
  if (!status.ok()) log::Warning("cannot remove old logs", {{"error", status}});
  return status.ok();
}

// What users give while there is too much of something: of the user who has the most, the oldest
// generation; before it those of a job that has more than `quota`. `weigh`: how much of it a
// generation is. `logs` are sorted from the newest to the oldest; those that go are moved out.
std::vector<Logs> TakeFromTheLargest(uint64_t keep, uint64_t quota, const std::string& newest,
                                     const std::function<uint64_t(const Logs&)>& weigh,
                                     std::vector<Logs>* logs) {
  std::map<std::string, uint64_t> of_user;
  std::map<std::string, uint64_t> of_job;
  uint64_t total = 0;
  for (const Logs& each : *logs) {
    total += weigh(each);
    of_user[each.user] += weigh(each);
    of_job[each.job_id] += weigh(each);
  }
  // Jobs within their quota are alike.
  const auto excess = [&](const Logs& each) { return std::max(of_job[each.job_id], quota); };
  std::vector<Logs> out;
  while (total > keep) {
    const auto most = std::max_element(of_user.begin(), of_user.end(),
                                       [](auto& a, auto& b) { return a.second < b.second; });
    auto next = logs->end();
    for (auto it = logs->begin(); it != logs->end(); ++it) {
      if (it->user != most->first || it->path == newest) continue;
      if (next == logs->end() || excess(*it) >= excess(*next)) next = it;
    }
    // All that this user has is the newest, which stays: nobody else gives for it.
    if (next == logs->end()) break;
    total -= weigh(*next);
    most->second -= weigh(*next);
    of_job[next->job_id] -= weigh(*next);
    out.push_back(std::move(*next));
    logs->erase(next);
  }
  return out;
}

}  // namespace

void LogsInUse::Hold(const std::string& directory) {
  MutexLock lock(mu_);
  held_.insert(directory);
}

void LogsInUse::Release(const std::string& directory) {
  MutexLock lock(mu_);
  held_.erase(directory);
}

bool LogsInUse::Contains(const std::string& directory) const {
  MutexLock lock(mu_);
  return held_.contains(directory);
}

void RemovedLogs::Add(const RemovedLogs& more) {
  user = more.user;
  if (job_id.empty() || more.largest_bytes > largest_bytes) {
    job_id = more.job_id;
    largest_bytes = more.largest_bytes;
  }
  generations += more.generations;
  bytes += more.bytes;
}

std::vector<RemovedLogs> PruneLogs(const LogRetention& retention, const LogsInUse& in_use) {
  std::vector<Logs> ended = EndedLogs(retention.root, in_use);
  const auto age = [&retention](const Logs& logs) {
    return std::make_tuple(logs.path == retention.newest, logs.written);
  };
  std::sort(ended.begin(), ended.end(),
            [&age](const Logs& a, const Logs& b) { return age(a) > age(b); });

  const auto now = fs::file_time_type::clock::now();
  size_t removed = 0;
  std::vector<Logs> kept;
  for (Logs& logs : ended) {
    const bool too_old = retention.keep_for.count() > 0 && now - logs.written > retention.keep_for;
    if (!too_old || logs.path == retention.newest || in_use.Contains(logs.path)) {
      kept.push_back(std::move(logs));
    } else {
      removed += Remove(logs, fmt::format("logs are kept for {} (--keep-logs-for)",
                                          FormatDuration(retention.keep_for)));
    }
  }
  for (const Logs& logs : TakeFromTheLargest(
           retention.keep_generations, 0, retention.newest,
           [](const Logs&) -> uint64_t { return 1; }, &kept)) {
    if (in_use.Contains(logs.path)) continue;
    removed += Remove(logs, fmt::format("logs of {} generations are kept (--keep-logs-count)",
                                        retention.keep_generations));
  }
  std::map<std::string, RemovedLogs> by_user;
  for (const Logs& logs : TakeFromTheLargest(
           retention.keep_bytes, retention.keep_bytes / kJobsShare, retention.newest,
           [](const Logs& logs) { return logs.bytes; }, &kept)) {
    const std::string why = fmt::format(
        "the logs of ended jobs took more than {} (--keep-logs), and "
        "those of {} the most",
        FormatBytes(retention.keep_bytes), logs.user.empty() ? "this user" : logs.user);
    if (in_use.Contains(logs.path) || !Remove(logs, why)) continue;
    ++removed;
    by_user[logs.user].Add({.user = logs.user,
                            .job_id = logs.job_id,
                            .largest_bytes = logs.bytes,
                            .generations = 1,
                            .bytes = logs.bytes});
  }
  if (removed > 0) log::Info("removed old logs", {{"generations", removed}});
  std::vector<RemovedLogs> out;
  for (auto& [user, of_user] : by_user) out.push_back(std::move(of_user));
  return out;
}

absl::Status WriteLogsOwner(const std::string& directory, const std::string& user) {
  const std::string path = (fs::path(directory).parent_path() / kOwner).string();
  return os::WriteFileAtomically(path, user, 0600, /*sync=*/false);
}

std::string WhyNoLogs(const std::string& directory) {
  const std::string generation = fs::path(directory).filename().string();
  absl::StatusOr<std::string> removed = os::ReadFile(directory + kRemoved);
  if (!removed.ok()) {
    return fmt::format(
        "there are no logs of generation {}: none were written, or the worker's "
        "state directory is another one since",
        generation);
  }
  while (!removed->empty() && removed->back() == '\n') removed->pop_back();
  return fmt::format("the logs of generation {} were {}", generation, *removed);
}

uint64_t LimitOfStream(uint64_t of_stream, uint64_t of_host, uint32_t slots) {
  // A limit below this keeps nothing that helps.
  constexpr uint64_t kLeast = 64 << 10;
  if (of_host == 0) return of_stream;
  const uint64_t share = std::max(of_host / (2 * std::max<uint64_t>(slots, 1)), kLeast);
  return of_stream == 0 ? share : std::min(of_stream, share);
}

}  // namespace meshrun::worker
