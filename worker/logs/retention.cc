#include "worker/logs/retention.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <tuple>
#include <vector>

#include "core/log.h"
#include "core/os/files.h"
#include "core/text.h"

namespace meshrun::worker {
namespace {

namespace fs = std::filesystem;

struct Logs {
  std::string path;
  uint64_t bytes = 0;
  // Time of the file that was written last.
  fs::file_time_type written;
};

Logs Measure(const fs::path& directory) {
  constexpr uint64_t kBlock = 512;
  std::error_code error;
  Logs out = {.path = directory.string(), .written = fs::last_write_time(directory, error)};
  for (const auto& file : fs::directory_iterator(directory, error)) {
    struct stat info;
    if (::lstat(file.path().c_str(), &info) == 0) out.bytes += info.st_blocks * kBlock;
    out.written = std::max(out.written, file.last_write_time(error));
  }
  return out;
}

std::vector<Logs> EndedLogs(const std::string& root, const LogsInUse& in_use) {
  std::vector<Logs> ended;
  std::error_code error;
  for (const auto& job : fs::directory_iterator(root, error)) {
    if (!job.is_directory(error)) continue;
    bool empty = true;
    for (const auto& generation : fs::directory_iterator(job.path(), error)) {
      empty = false;
      if (generation.is_directory(error) && !in_use.Contains(generation.path().string())) {
        ended.push_back(Measure(generation.path()));
      }
    }
    // Fails when a generation's directory was made meanwhile.
    if (empty) fs::remove(job.path(), error);
  }
  return ended;
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

int PruneLogs(const LogRetention& retention, const LogsInUse& in_use) {
  std::vector<Logs> ended = EndedLogs(retention.root, in_use);
  const auto age = [&retention](const Logs& logs) {
    return std::make_tuple(logs.path == retention.newest, logs.written);
  };
  std::sort(ended.begin(), ended.end(),
            [&age](const Logs& a, const Logs& b) { return age(a) > age(b); });

  const auto now = fs::file_time_type::clock::now();
  int removed = 0;
  size_t kept = 0;
  uint64_t kept_bytes = 0, freed = 0;
  for (const Logs& logs : ended) {
    kept_bytes += logs.bytes;
    const bool too_old = retention.keep_for.count() > 0 && now - logs.written > retention.keep_for;
    const bool fits = kept_bytes <= retention.keep_bytes && kept < retention.keep_generations;
    if ((fits && !too_old) || logs.path == retention.newest || in_use.Contains(logs.path)) {
      ++kept;
      continue;
    }
    if (const absl::Status status = os::RemoveTree(logs.path); !status.ok()) {
      log::Warning("cannot remove old logs", {{"error", status}});
      continue;
    }
    ++removed;
    freed += logs.bytes;
  }
  if (removed > 0) {
    log::Info("removed the oldest logs", {{"generations", removed}, {"freed", FormatBytes(freed)}});
  }
  return removed;
}

}  // namespace meshrun::worker
