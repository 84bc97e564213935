#include "worker/launch/shipped_jobs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/os/process.h"

namespace meshrun::worker {
namespace {

bool IsProgram(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

constexpr std::string_view kCuda = "_cuda";

// Empty when there is none.
std::string ProgramOf(const std::string& jobs_dir, const std::string& name) {
  for (const std::string& path : {jobs_dir + "/" + name + "/" + name, jobs_dir + "/" + name}) {
    if (IsProgram(path)) return path;
  }
  return "";
}

}  // namespace

std::string DefaultJobsDirectory() {
  const std::filesystem::path here = std::filesystem::path(os::SelfPath()).parent_path();
  std::error_code ignored;
  for (const auto& candidate : {here.parent_path() / "jobs", here / "jobs",
                                here.parent_path() / "libexec" / "meshrun" / "jobs"}) {
    if (std::filesystem::is_directory(candidate, ignored)) return candidate.string();
  }
  return "";
}

std::vector<std::string> ListShippedJobs(const std::string& jobs_dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(jobs_dir, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(kCuda) && !ProgramOf(jobs_dir, name).empty()) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::string> FindShippedJob(const std::string& jobs_dir, const std::string& name,
                                           bool gpus) {
  // Only a plain name: a path could lead out of the directory.
  const bool plain = !name.empty() && name[0] != '.' && name.find('/') == std::string::npos;
  if (plain && !jobs_dir.empty()) {
    if (std::string path = ProgramOf(jobs_dir, name); !path.empty()) {
      const std::string cuda = path + std::string(kCuda);
      return gpus && IsProgram(cuda) ? cuda : path;
    }
  }
  const std::vector<std::string> names = ListShippedJobs(jobs_dir);
  return absl::NotFoundError(
      names.empty() ? fmt::format("there is no shipped job {}: this host has none in {}", name,
                                  jobs_dir.empty() ? "../jobs" : jobs_dir)
                    : fmt::format("there is no shipped job {}: this host has {}", name,
                                  fmt::join(names, ", ")));
}

}  // namespace meshrun::worker
