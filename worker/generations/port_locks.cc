#include "worker/generations/port_locks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/log.h"
#include "core/os/files.h"
#include "core/os/private_directory.h"
#include "core/status.h"

namespace meshrun::worker {
namespace {

// Names in the directory for temporary files.
constexpr int kNames = 9;

// Not so where the file system is read-only in this process's mount namespace.
bool CanWriteIn(const std::string& directory) {
  return ::access(directory.c_str(), W_OK | X_OK) == 0;
}

os::UniqueFd Guard(uint16_t port) {
  os::UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return fd;
  }
  return {};
}

}  // namespace

absl::Status PortLocks::Open() {
  directories_.clear();
  std::vector<std::string> taken;
  std::vector<std::string> free;
  ::mkdir(options_.run_dir.c_str(), 0755);  // where this user may
  if (os::CheckOwnDirectory(options_.run_dir).ok()) {
    const std::string directory = options_.run_dir + "/ports";
    if (os::MakePrivateDirectory(directory).ok() && CanWriteIn(directory)) {
      directories_.push_back(directory);
    }
  }
  const size_t without_tmp = directories_.size();
  const std::string name = fmt::format("{}/meshrun-ports-{}", options_.tmp_dir, ::geteuid());
  for (int i = 1; i <= kNames; ++i) {
    const std::string directory = i == 1 ? name : fmt::format("{}-{}", name, i);
    const absl::Status found = os::CheckPrivateDirectory(directory);
    if (found.ok()) {
      if (CanWriteIn(directory)) directories_.push_back(directory);
    } else if (absl::IsNotFound(found)) {
      free.push_back(directory);
    } else {
      taken.push_back(directory);
      if (warned_.insert(directory).second) {
        log::Warning("skipping a directory for locks on ports",
                     {{"why", std::string(found.message())}});
      }
    }
  }
  absl::Status failed = absl::PermissionDeniedError(
      fmt::format("no directory for locks on ports: all of these names are taken, remove one: {}",
                  fmt::join(taken, ", ")));
  for (auto it = free.begin(); directories_.size() == without_tmp && it != free.end(); ++it) {
    failed = os::MakePrivateDirectory(*it);
    if (failed.ok()) directories_.push_back(*it);
  }
  if (directories_.empty()) return failed;
  // The old locks end when the new ones are there.
  std::vector<os::UniqueFd> kept;
  for (const std::string& directory : directories_) {
    os::UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd && ::flock(fd.get(), LOCK_SH | LOCK_NB) == 0) kept.push_back(std::move(fd));
  }
  kept_ = std::move(kept);
  return absl::OkStatus();
}

absl::StatusOr<PortLocks::Claim> PortLocks::Try(uint16_t first, uint16_t last, bool without_guard) {
  Claim claim;
  claim.guard = Guard(first);
  if (!claim.guard && !without_guard) return Claim{};
  absl::Status failed;
  for (const std::string& directory : directories_) {
    const std::string path = fmt::format("{}/{}-{}", directory, first, last);
    os::UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) {
      failed = os::ErrnoStatus(errno, path);
      continue;
    }
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return Claim{};
    claim.files.push_back(std::move(file));
  }
  if (claim.files.empty() && !failed.ok()) return failed;
  return claim;
}

}  // namespace meshrun::worker
