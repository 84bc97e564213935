#include "client/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

#include "client/held_file.h"
#include "core/os/files.h"

namespace meshrun::client {
namespace {

constexpr std::string_view kName = "meshrun-run.";
constexpr size_t kMaxParent = 40;
constexpr int kAttempts = 10;

std::string LockPath(const std::string& directory) { return directory + "/lock"; }

}  // namespace

std::string RunDirectory::DefaultParent() {
  const char* tmp = std::getenv("TMPDIR");
  // Sockets below it must fit 107 bytes.
  return tmp != nullptr && tmp[0] == '/' && std::string_view(tmp).size() <= kMaxParent ? tmp
                                                                                       : "/tmp";
}

absl::StatusOr<RunDirectory> RunDirectory::Create(const std::string& parent) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::string path = fmt::format("{}/{}XXXXXX", parent, kName);
    if (::mkdtemp(path.data()) == nullptr) {
      const absl::Status why = os::ErrnoStatus(errno, parent);
      return absl::Status(why.code(),
                          fmt::format("{}: set TMPDIR to a directory that this user can write",
                                      std::string(why.message())));
    }
    RunDirectory directory;
    directory.lock_ = TryLock(LockPath(path), O_CREAT);
    // Another process took the directory, and removes it.
    if (!directory.lock_) continue;
    directory.path_ = std::move(path);
    return directory;
  }
  return absl::UnavailableError(fmt::format(
      "no directory below {} could be locked in {} attempts: see whether its file system knows "
      "locks, or set TMPDIR to another",
      parent, kAttempts));
}

void RunDirectory::RemoveAbandoned(const std::string& parent, std::chrono::nanoseconds young) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(parent, error), end; !error && entry != end;
       entry.increment(error)) {
    struct stat info;
    const std::string path = entry->path();
    if (!entry->path().filename().string().starts_with(kName) ||
        ::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::getuid() ||
        Age(info) < young) {
      continue;
    }
    if (const os::UniqueFd lock = TryLock(LockPath(path), 0)) os::RemoveTree(path).IgnoreError();
  }
}

RunDirectory::RunDirectory(RunDirectory&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {}

RunDirectory& RunDirectory::operator=(RunDirectory&& other) noexcept {
  if (this != &other) {
    Remove();
    path_ = std::exchange(other.path_, {});
    lock_ = std::move(other.lock_);
  }
  return *this;
}

void RunDirectory::Remove() {
  if (path_.empty()) return;
  os::RemoveTree(path_).IgnoreError();
  path_.clear();
  lock_.reset();
}

}  // namespace meshrun::client
