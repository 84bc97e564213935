#include "parallel/comm/flight_record_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/os/fd.h"
#include "fmt/format.h"

namespace meshrun {
namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::filesystem::path directory() {
  if (const std::string chosen = variable("MESHRUN_FLIGHT_RECORD_DIR"); !chosen.empty()) {
    return chosen;
  }
  const std::filesystem::path error_file = variable("TORCHELASTIC_ERROR_FILE");
  if (error_file.has_parent_path()) return error_file.parent_path();
  const std::string temporary = variable("TMPDIR");
  return temporary.empty() ? "/tmp" : temporary;
}

}  // namespace

std::string flight_record_path(int world_rank) {
  return directory() /
         fmt::format("meshrun-flight-record-rank-{}-{}.jsonl", world_rank, ::getpid());
}

std::string keep_flight_record(const std::string& path, const std::string& json) {
  const std::string line = json + "\n";
  const os::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  // One write: records of two groups do not mix.
  const bool written =
      fd && ::write(fd.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const int error = errno;
  if (written) return fmt::format("the last operations of a group that failed are in {}", path);
  return fmt::format("the flight record of a group that failed could not be written to {}: {}",
                     path, std::strerror(error));
}

}  // namespace meshrun
