#include "core/rpc/unix_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/os/files.h"
#include "core/os/private_directory.h"
#include "core/status.h"

namespace meshrun::rpc {
namespace {

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status Taken(const std::string& path, std::string_view flag) {
  return absl::AlreadyExistsError(fmt::format(
      "unix:{} is taken: another process listens there; stop that one, or choose another {}", path,
      flag));
}

// True when a process accepts connections there.
bool SomebodyListens(const std::string& path) {
  const os::UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  // EAGAIN: somebody listens, and its queue is full.
  return fd &&
         (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
          errno == EAGAIN);
}

}  // namespace

std::string GrpcTarget(const std::string& address) {
  const std::optional<std::string> path = UnixPath(address);
  if (!path) return address;
  std::string out = "unix:";
  for (const char c : *path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("/-._~").find(c) != std::string_view::npos;
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

std::optional<std::string> UnixPath(std::string_view address) {
  constexpr std::string_view kScheme = "unix:";
  if (!address.starts_with(kScheme)) return std::nullopt;
  address.remove_prefix(kScheme.size());
  if (address.starts_with("///")) address.remove_prefix(2);
  return std::string(address);
}

absl::Status CheckSocketDirectory(const std::string& path) {
  MESHRUN_RETURN_IF_ERROR(os::CheckSocketPath(path));
  // A rank of another user than its daemon's, which is root: worker/generations/state_dir.h.
  struct stat info;
  if (::geteuid() != 0 && ::lstat(DirectoryOf(path).c_str(), &info) == 0 && S_ISDIR(info.st_mode) &&
      info.st_uid == 0 && (info.st_mode & 022) == 0) {
    return absl::OkStatus();
  }
  return os::CheckPrivateDirectory(DirectoryOf(path));
}

absl::Status MakeSocketDirectory(const std::string& path) {
  MESHRUN_RETURN_IF_ERROR(os::CheckSocketPath(path));
  return os::MakePrivateDirectory(DirectoryOf(path));
}

absl::StatusOr<SocketClaim> SocketClaim::Take(const std::string& path, std::string_view flag) {
  MESHRUN_RETURN_IF_ERROR(MakeSocketDirectory(path));
  const std::string lock_path = path + ".lock";
  SocketClaim claim;
  claim.lock_.reset(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!claim.lock_) return os::ErrnoStatus(errno, lock_path);
  if (::flock(claim.lock_.get(), LOCK_EX | LOCK_NB) != 0) return Taken(path, flag);
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::StatusOr<SocketClaim>(std::move(claim))
                           : os::ErrnoStatus(errno, path);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::AlreadyExistsError(
        fmt::format("{} is not a socket: remove it, or choose another {}", path, flag));
  }
  // Another program's, which knows nothing of the lock.
  if (SomebodyListens(path)) return Taken(path, flag);
  if (::unlink(path.c_str()) != 0) return os::ErrnoStatus(errno, path);
  return claim;
}

}  // namespace meshrun::rpc
