#include "worker/generations/state_dir.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/hash.h"
#include "core/os/files.h"
#include "core/status.h"

namespace meshrun::worker {
namespace {

// "/g/0123456789-1234567/r123456.sock"
constexpr size_t kLongestBelow = 36;
constexpr size_t kSocketPathLimit = 107;

std::string ShortHash(std::string_view text) { return HexEncode(Sha256(text)).substr(0, 10); }

// Creates the directory or checks that it is ours: in /tmp any user could have made it.
absl::Status MakePrivateDirectory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return os::ErrnoStatus(errno, path);
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) return os::ErrnoStatus(errno, path);
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) {
    return absl::PermissionDeniedError(fmt::format("{} is not this user's own directory", path));
  }
  if ((info.st_mode & 077) != 0 && ::chmod(path.c_str(), 0700) != 0)
    return os::ErrnoStatus(errno, path);
  return absl::OkStatus();
}

absl::StatusOr<std::string> RunDirectory(const std::string& state_dir) {
  if (state_dir.size() + kLongestBelow <= kSocketPathLimit) return state_dir;
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  std::string path = runtime != nullptr && *runtime != '\0'
                         ? fmt::format("{}/meshrun-{}", runtime, ShortHash(state_dir))
                         : fmt::format("/tmp/meshrun-{}-{}", ::geteuid(), ShortHash(state_dir));
  if (path.size() + kLongestBelow > kSocketPathLimit) {
    path = fmt::format("/tmp/meshrun-{}-{}", ::geteuid(), ShortHash(state_dir));
  }
  MESHRUN_RETURN_IF_ERROR(MakePrivateDirectory(path));
  return path;
}

}  // namespace

absl::StatusOr<StateDir> StateDir::Open(const std::string& path, IdSource& ids) {
  StateDir out;
  std::error_code error;
  out.path_ = std::filesystem::absolute(path, error).lexically_normal().string();
  while (out.path_.size() > 1 && out.path_.back() == '/') out.path_.pop_back();
  MESHRUN_RETURN_IF_ERROR(os::MakeDirectories(out.path_, 0700));

  const std::string lock_path = out.path_ + "/lock";
  out.lock_.reset(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!out.lock_) return os::ErrnoStatus(errno, lock_path);
  if (::flock(out.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(fmt::format(
        "another worker uses the state directory {}: stop it, or pass --state-dir", out.path_));
  }
  MESHRUN_ASSIGN_OR_RETURN(out.run_dir_, RunDirectory(out.path_));
  MESHRUN_RETURN_IF_ERROR(os::MakeDirectories(out.run_dir_ + "/g", 0700));
  MESHRUN_RETURN_IF_ERROR(os::MakeDirectories(out.LogRoot(), 0700));

  const std::string node_path = out.path_ + "/node.json";
  if (const auto content = os::ReadFile(node_path); content.ok()) {
    const auto node = nlohmann::json::parse(*content, nullptr, /*allow_exceptions=*/false);
    if (!node.is_object() || !node.contains("node_id") || !node["node_id"].is_string() ||
        !node.contains("incarnation") || !node["incarnation"].is_number_unsigned()) {
      return absl::DataLossError(
          fmt::format("{} is damaged: remove it, and this host joins as a new node", node_path));
    }
    out.node_id_ = node["node_id"].get<std::string>();
    out.incarnation_ = node["incarnation"].get<uint64_t>();
  } else if (content.status().code() == absl::StatusCode::kNotFound) {
    out.node_id_ = "node-" + ids.Suffix(10);
  } else {
    return content.status();
  }
  ++out.incarnation_;
  const nlohmann::json node = {{"node_id", out.node_id_}, {"incarnation", out.incarnation_}};
  MESHRUN_RETURN_IF_ERROR(os::WriteFileAtomically(node_path, node.dump() + "\n", 0600));
  return out;
}

std::string StateDir::GenerationDirectory(const std::string& job_id, uint64_t generation) const {
  return fmt::format("{}/g/{}-{}", run_dir_, ShortHash(job_id), generation);
}

std::string StateDir::LogDirectory(const std::string& job_id, uint64_t generation) const {
  return fmt::format("{}/{}/{}", LogRoot(), job_id, generation);
}

std::vector<std::string> StateDir::GenerationDirectories() const {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir_ + "/g", error)) {
    out.push_back(entry.path().string());
  }
  return out;
}

}  // namespace meshrun::worker
