#include "client/cli/input_broadcast.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "core/os/files.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

// How often to look whether a reader has taken the last bytes.
constexpr int kLookAgain = 20;

}  // namespace

absl::StatusOr<std::unique_ptr<InputBroadcast>> InputBroadcast::Start(uint32_t ranks) {
  std::unique_ptr<InputBroadcast> out(new InputBroadcast);
  MESHRUN_ASSIGN_OR_RETURN(out->directory_, RunDirectory::Create(RunDirectory::DefaultParent()));
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const std::string path = fmt::format("{}/{}", out->directory(), rank);
    if (::mkfifo(path.c_str(), 0600) != 0) return os::ErrnoStatus(errno, path);
    // For both directions: bytes stay in it while no rank has it open.
    os::UniqueFd fifo(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    if (!fifo) return os::ErrnoStatus(errno, path);
    out->fifos_.push_back(std::move(fifo));
  }
  out->stop_.reset(::eventfd(0, EFD_CLOEXEC));
  if (!out->stop_) return os::ErrnoStatus(errno, "eventfd");
  out->thread_ = std::thread([broadcast = out.get()] { broadcast->Run(); });
  return out;
}

InputBroadcast::~InputBroadcast() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

bool InputBroadcast::Wait(int fd, short events, int milliseconds) const {
  pollfd fds[2] = {{stop_.get(), POLLIN, 0}, {fd, events, 0}};
  while (::poll(fds, 2, milliseconds) < 0 && errno == EINTR) {
  }
  return fds[0].revents == 0;
}

bool InputBroadcast::WriteToAll(const char* data, size_t size) const {
  for (const os::UniqueFd& fifo : fifos_) {
    size_t written = 0;
    while (written < size) {
      const ssize_t n = ::write(fifo.get(), data + written, size - written);
      if (n > 0) {
        written += static_cast<size_t>(n);
      } else if (errno == EAGAIN) {
        if (!Wait(fifo.get(), POLLOUT, -1)) return false;
      } else if (errno != EINTR) {
        break;
      }
    }
  }
  return true;
}

void InputBroadcast::Run() {
  std::array<char, 4096> buffer;
  while (Wait(STDIN_FILENO, POLLIN, -1)) {
    const ssize_t n = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) break;
    if (!WriteToAll(buffer.data(), static_cast<size_t>(n))) return;
  }
  // A rank finds the end when it has read all: what is in a FIFO goes with its last descriptor.
  for (os::UniqueFd& fifo : fifos_) {
    int left = 0;
    while (::ioctl(fifo.get(), FIONREAD, &left) == 0 && left > 0) {
      if (!Wait(-1, 0, kLookAgain)) return;
    }
    fifo.reset();
  }
}

}  // namespace meshrun::client
