#include "parallel/comm/ucx/engine/liveness/hub_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace meshrun::ucx {
namespace {

// Longest greeting of a process that has not said yet who it is.
constexpr size_t kLongestHello = 1000;
constexpr size_t kReadAtOnce = 64 << 10;
constexpr const char* kEnded = "its process ended";

void watch_peer(int fd) {
  const auto set = [fd](int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 2);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
}

}  // namespace

std::vector<std::string_view> words(std::string_view text, size_t most) {
  std::vector<std::string_view> found;
  while (!text.empty() && found.size() + 1 < most) {
    const size_t end = text.find(' ');
    found.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  if (!text.empty()) found.push_back(text);
  return found;
}

HubConnection::HubConnection(os::UniqueFd fd) : fd_(std::move(fd)) { watch_peer(fd_.get()); }

void HubConnection::write(std::string_view frame) {
  AppendFrame(frame.substr(0, kLongestFrame), &out_);
  flush();
}

void HubConnection::flush() {
  while (!out_.empty()) {
    const ssize_t sent = send(fd(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    // What is wrong is found by reading.
    if (sent < 0) return;
    out_.erase(0, static_cast<size_t>(sent));
  }
  if (is_ending_) shutdown(fd(), SHUT_WR);
}

void HubConnection::end() {
  is_ending_ = true;
  flush();
}

bool HubConnection::read(std::string* reason) {
  std::array<char, 4096> part;
  for (size_t left = kReadAtOnce; left > 0;) {
    const ssize_t got = recv(fd(), part.data(), std::min(part.size(), left), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) {
      *reason = got < 0 && (errno == ETIMEDOUT || errno == EHOSTUNREACH)
                    ? "its host does not answer"
                    : kEnded;
      return false;
    }
    in_.Append({part.data(), static_cast<size_t>(got)});
    left -= static_cast<size_t>(got);
  }
  return true;
}

std::optional<std::string> HubConnection::next() { return in_.Next(longest()); }

bool HubConnection::is_garbled() const { return in_.IsGarbled(longest()); }

size_t HubConnection::longest() const { return rank < 0 ? kLongestHello : kLongestFrame; }

}  // namespace meshrun::ucx
