#include "worker/supervisor/unix_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/os/boot_time.h"
#include "core/os/files.h"
#include "core/status.h"

namespace meshrun::worker {
namespace {

// A datagram that seems to have waited longer was stamped by another wall clock: it was set
// meanwhile, or this process has one of its own (libfaketime).
constexpr std::chrono::seconds kLongestWait(1);

// Two clocks that are read within this are read at one moment.
constexpr std::chrono::microseconds kOneMoment(50);
constexpr int kReadings = 3;

std::chrono::nanoseconds ToNanos(const timespec& time) {
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

struct Moment {
  std::chrono::nanoseconds boot, wall;
};

// Another program may have the processor between two readings: those that lie closest count.
Moment Now() {
  Moment now = {};
  auto closest = std::chrono::nanoseconds::max();
  for (int reading = 0; reading < kReadings && closest > kOneMoment; ++reading) {
    timespec wall;
    const std::chrono::nanoseconds before = os::BootTimeNow();
    ::clock_gettime(CLOCK_REALTIME, &wall);
    const std::chrono::nanoseconds apart = os::BootTimeNow() - before;
    if (apart >= closest) continue;
    closest = apart;
    now = {.boot = before + apart / 2, .wall = ToNanos(wall)};
  }
  return now;
}

absl::StatusOr<sockaddr_un> Address(const std::string& path) {
  MESHRUN_RETURN_IF_ERROR(os::CheckSocketPath(path));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::StatusOr<os::UniqueFd> Bind(const std::string& path, int type) {
  MESHRUN_ASSIGN_OR_RETURN(const sockaddr_un address, Address(path));
  os::UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return os::ErrnoStatus(errno, "socket");
  ::unlink(path.c_str());
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return os::ErrnoStatus(errno, path);
  }
  return fd;
}

}  // namespace

absl::StatusOr<os::UniqueFd> ListenUnix(const std::string& path, int backlog) {
  MESHRUN_ASSIGN_OR_RETURN(os::UniqueFd fd, Bind(path, SOCK_STREAM));
  if (::listen(fd.get(), backlog) != 0) return os::ErrnoStatus(errno, path);
  return fd;
}

absl::StatusOr<os::UniqueFd> BindDatagrams(const std::string& path) {
  MESHRUN_ASSIGN_OR_RETURN(os::UniqueFd fd, Bind(path, SOCK_DGRAM));
  const int on = 1;
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof(on));
  return fd;
}

std::optional<Datagram> ReceiveDatagram(int fd, std::span<char> buffer) {
  iovec part = {buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(timespec))];
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t n = ::recvmsg(fd, &message, MSG_DONTWAIT);
  if (n < 0) return std::nullopt;
  const Moment now = Now();
  Datagram out = {{buffer.data(), static_cast<size_t>(n)}, now.boot};
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_TIMESTAMPNS) continue;
    timespec sent;
    std::memcpy(&sent, CMSG_DATA(head), sizeof(sent));
    const std::chrono::nanoseconds waited = now.wall - ToNanos(sent);
    if (waited > std::chrono::nanoseconds(0) && waited < kLongestWait) out.sent -= waited;
  }
  return out;
}

absl::StatusOr<os::UniqueFd> ConnectUnix(const std::string& path) {
  MESHRUN_ASSIGN_OR_RETURN(const sockaddr_un address, Address(path));
  os::UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return os::ErrnoStatus(errno, "socket");
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == ECONNREFUSED)
      return absl::NotFoundError(fmt::format("{}: no process listens there", path));
    return os::ErrnoStatus(errno, path);
  }
  return fd;
}

absl::Status GiveSocket(const std::string& path, uid_t uid, gid_t gid) {
  if (::chmod(path.c_str(), 0600) != 0 || ::lchown(path.c_str(), uid, gid) != 0) {
    return os::ErrnoStatus(errno, path);
  }
  return absl::OkStatus();
}

}  // namespace meshrun::worker
