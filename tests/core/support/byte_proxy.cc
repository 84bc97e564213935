#include "tests/core/support/byte_proxy.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace meshrun::testing {
namespace {

// RFC 9113: the client's preface, then frames of length (3 bytes), type, flags, stream (4 bytes).
constexpr size_t kPreface = 24;
constexpr size_t kFrameHeader = 9;
constexpr uint8_t kPing = 6;
constexpr uint8_t kAck = 1;

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

bool WriteAll(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = ::send(fd, data, size, MSG_NOSIGNAL);
    if (n <= 0) return false;
    data += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

ByteProxy::ByteProxy(uint16_t server_port)
    : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      stop_(::eventfd(0, EFD_CLOEXEC)),
      server_port_(server_port) {
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size);
  ::listen(listener_.get(), 1);
  ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Run(); });
}

ByteProxy::~ByteProxy() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

std::string ByteProxy::address() const { return "127.0.0.1:" + std::to_string(port_); }

void ByteProxy::Run() {
  pollfd first[] = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  ::poll(first, 2, -1);
  if (first[0].revents != 0) return;
  const os::UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const os::UniqueFd server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(server_port_);
  ::connect(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  pollfd fds[] = {{stop_.get(), POLLIN, 0}, {client.get(), POLLIN, 0}, {server.get(), POLLIN, 0}};
  char buffer[1 << 14];
  while (true) {
    ::poll(fds, 3, -1);
    if (fds[0].revents != 0) return;
    for (int from = 1; from <= 2; ++from) {
      if (fds[from].revents == 0) continue;
      const ssize_t n = ::recv(fds[from].fd, buffer, sizeof(buffer), 0);
      if (n <= 0 && !swallow_) return;
      // Gone for good on that side; the other must not see it.
      if (n <= 0) fds[from].fd = -1;
      if (n <= 0 || swallow_) continue;
      if (from == 1) CountPings(buffer, static_cast<size_t>(n));
      if (!WriteAll(fds[3 - from].fd, buffer, static_cast<size_t>(n))) return;
    }
  }
}

void ByteProxy::CountPings(const char* data, size_t size) {
  frames_.append(data, size);
  if (!preface_seen_) {
    if (frames_.size() < kPreface) return;
    frames_.erase(0, kPreface);
    preface_seen_ = true;
  }
  while (frames_.size() >= kFrameHeader) {
    const auto* const header = reinterpret_cast<const uint8_t*>(frames_.data());
    const size_t length = header[0] << 16 | header[1] << 8 | header[2];
    if (frames_.size() < kFrameHeader + length) return;
    if (header[3] == kPing && (header[4] & kAck) == 0) ++client_pings_;
    frames_.erase(0, kFrameHeader + length);
  }
}

}  // namespace meshrun::testing
