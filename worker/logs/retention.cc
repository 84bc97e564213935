#include "worker/logs/retention.h"

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
  // Of the file that was written last.
  fs::file_time_type written;
};

Logs Measure(const fs::path& directory) {
  std::error_code error;
  Logs out = {.path = directory.string(), .written = fs::last_write_time(directory, error)};
  for (const auto& file : fs::directory_iterator(directory, error)) {
    if (const auto size = file.file_size(error); !error) out.bytes += size;
    out.written = std::max(out.written, file.last_write_time(error));
  }
  return out;
}

}  // namespace

std::vector<std::string> EndedLogs(const std::string& root, const std::set<std::string>& in_use) {
  std::vector<std::string> ended;
  std::error_code error;
  for (const auto& job : fs::directory_iterator(root, error)) {
    if (!job.is_directory(error)) continue;
    bool empty = true;
    for (const auto& generation : fs::directory_iterator(job.path(), error)) {
      empty = false;
      const std::string path = generation.path().string();
      if (generation.is_directory(error) && !in_use.contains(path)) ended.push_back(path);
    }
    if (empty) fs::remove(job.path(), error);
  }
  return ended;
}

int PruneLogs(const LogRetention& retention) {
  std::vector<Logs> ended;
  for (const std::string& path : retention.ended) ended.push_back(Measure(path));
  const auto age = [&retention](const Logs& logs) {
    return std::make_tuple(logs.path == retention.newest, logs.written);
  };
  std::sort(ended.begin(), ended.end(),
            [&age](const Logs& a, const Logs& b) { return age(a) > age(b); });

  int removed = 0;
  uint64_t kept = 0, freed = 0;
  for (const Logs& logs : ended) {
    kept += logs.bytes;
    if (kept <= retention.keep_bytes || logs.path == retention.newest) continue;
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
