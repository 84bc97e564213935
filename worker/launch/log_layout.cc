#include "worker/launch/log_layout.h"

#include <fmt/format.h>

#include <string_view>

namespace meshrun::worker {
namespace {

constexpr std::string_view kStdout = "stdout.log";
constexpr std::string_view kStderr = "stderr.log";
constexpr std::string_view kError = "error.json";
constexpr std::string_view kDump = "dump.txt";
constexpr std::string_view kFlightRecord = "flight_record.json";

std::string RankDirectory(const LogLayout& layout, const std::string& job_id, uint64_t generation,
                          int rank) {
  return fmt::format("{}/{}/attempt_{}/{}", layout.directory, job_id, generation - 1, rank);
}

}  // namespace

std::string LogPath(const std::string& logs, int rank, v1::LogStream stream) {
  return fmt::format("{}/{}.{}", logs, rank, stream == v1::LOG_STREAM_STDERR ? kStderr : kStdout);
}

std::string ErrorFilePath(const std::string& logs, int rank) {
  return fmt::format("{}/{}.{}", logs, rank, kError);
}

bool LogLayout::Takes(int rank, v1::LogStream stream) const {
  const bool is_stderr = stream == v1::LOG_STREAM_STDERR;
  return !directory.empty() && (tee.Has(rank, is_stderr) || redirects.Has(rank, is_stderr));
}

std::string LogLayout::Path(const std::string& logs, const std::string& job_id, uint64_t generation,
                            int rank, v1::LogStream stream) const {
  if (!Takes(rank, stream)) return LogPath(logs, rank, stream);
  return fmt::format("{}/{}", RankDirectory(*this, job_id, generation, rank),
                     stream == v1::LOG_STREAM_STDERR ? kStderr : kStdout);
}

std::string LogLayout::ErrorFile(const std::string& logs, const std::string& job_id,
                                 uint64_t generation, int rank) const {
  if (directory.empty()) return ErrorFilePath(logs, rank);
  return fmt::format("{}/{}", RankDirectory(*this, job_id, generation, rank), kError);
}

std::string LogLayout::DumpFile(const std::string& logs, const std::string& job_id,
                                uint64_t generation, int rank) const {
  if (directory.empty()) return fmt::format("{}/{}.{}", logs, rank, kDump);
  return fmt::format("{}/{}", RankDirectory(*this, job_id, generation, rank), kDump);
}

std::string LogLayout::FlightRecordFile(const std::string& logs, const std::string& job_id,
                                        uint64_t generation, int rank) const {
  if (directory.empty()) return fmt::format("{}/{}.{}", logs, rank, kFlightRecord);
  return fmt::format("{}/{}", RankDirectory(*this, job_id, generation, rank), kFlightRecord);
}

bool IsOfLogLayout(const std::string& path) {
  const std::string_view name = std::string_view(path).substr(path.rfind('/') + 1);
  return name == kStdout || name == kStderr || name == kError;
}

}  // namespace meshrun::worker
