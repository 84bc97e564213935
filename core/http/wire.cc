#include "core/http/wire.h"

#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace meshrun::http {
namespace {

using std::chrono::steady_clock;

// For what a client still sends when its request has been refused.
constexpr std::chrono::milliseconds kLinger(200);
constexpr int kMostLingeringReads = 256;

}  // namespace

Wire::Wire(int socket, const Limits& limits, const std::shared_ptr<SSL_CTX>& context)
    : socket_(socket),
      limits_(limits),
      tls_(context == nullptr ? nullptr : ::SSL_new(context.get()), &::SSL_free) {
  if (tls_ != nullptr) ::SSL_set_fd(tls_.get(), socket_);
}

bool Wire::Handshake() {
  const Time deadline = steady_clock::now() + limits_.handshake;
  int result = 0;
  do {
    ::ERR_clear_error();
    result = ::SSL_accept(tls_.get());
  } while (result != 1 && AwaitTls(result, deadline));
  return result == 1;
}

bool Wire::AwaitRequest(std::chrono::milliseconds time) {
  answers_ = false;
  in_body_ = false;
  room_ = limits_.head_bytes;
  if (begin_ == end_) {
    const ssize_t got = Receive(buffer_.data(), buffer_.size(), steady_clock::now() + time);
    if (got <= 0) return false;
    begin_ = 0;
    end_ = static_cast<size_t>(got);
  }
  deadline_ = steady_clock::now() + limits_.request;
  return true;
}

void Wire::BeginBody() {
  // The sizes of chunks are written between them.
  room_ = limits_.body_bytes + limits_.head_bytes;
  in_body_ = true;
}

ssize_t Wire::read(char* to, size_t size) {
  if (broken_) return -1;
  if (room_ == 0) {
    full_ = true;
    return -1;
  }
  if (begin_ == end_) {
    const ssize_t got = Receive(buffer_.data(), buffer_.size(), deadline_);
    if (got <= 0) return got;
    begin_ = 0;
    end_ = static_cast<size_t>(got);
  }
  const size_t count = std::min({size, end_ - begin_, room_});
  std::memcpy(to, buffer_.data() + begin_, count);
  begin_ += count;
  room_ -= count;
  return static_cast<ssize_t>(count);
}

ssize_t Wire::write(const char* from, size_t size) {
  if (!answers_) {
    answers_ = true;
    answer_began_ = steady_clock::now();
    answered_ = 0;
  }
  for (size_t done = 0; done < size;) {
    const std::chrono::milliseconds for_bytes((answered_ + size - done) * 1000 /
                                              limits_.least_bytes_per_second);
    const ssize_t sent = Send(from + done, size - done, answer_began_ + limits_.answer + for_bytes);
    if (sent <= 0) return Break();
    done += static_cast<size_t>(sent);
    answered_ += static_cast<size_t>(sent);
  }
  return static_cast<ssize_t>(size);
}

bool Wire::Ended() const {
  if (broken_) return true;
  pollfd peer{.fd = socket_, .events = POLLRDHUP, .revents = 0};
  return ::poll(&peer, 1, 0) > 0;
}

void Wire::Close() {
  if (broken_) return;
  if (tls_ != nullptr) ::SSL_shutdown(tls_.get());
  ::shutdown(socket_, SHUT_WR);
  const Time deadline = steady_clock::now() + kLinger;
  for (int reads = 0; reads < kMostLingeringReads && AwaitSocket(POLLIN, deadline); ++reads) {
    if (::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT) <= 0) return;
  }
}

ssize_t Wire::Receive(char* to, size_t size, Time deadline) {
  while (!broken_) {
    if (tls_ != nullptr) {
      ::ERR_clear_error();
      const int got = ::SSL_read(tls_.get(), to, static_cast<int>(size));
      if (got > 0) return got;
      if (::SSL_get_error(tls_.get(), got) == SSL_ERROR_ZERO_RETURN) return 0;
      if (!AwaitTls(got, deadline)) return Break();
      continue;
    }
    const ssize_t got = ::recv(socket_, to, size, 0);
    if (got >= 0) return got;
    if (errno == EINTR) continue;
    if (errno != EAGAIN || !AwaitSocket(POLLIN, deadline)) return Break();
  }
  return -1;
}

ssize_t Wire::Send(const char* from, size_t size, Time deadline) {
  while (!broken_) {
    if (tls_ != nullptr) {
      ::ERR_clear_error();
      const int sent =
          ::SSL_write(tls_.get(), from, static_cast<int>(std::min<size_t>(size, 1u << 20)));
      if (sent > 0) return sent;
      if (!AwaitTls(sent, deadline)) return Break();
      continue;
    }
    const ssize_t sent = ::send(socket_, from, size, MSG_NOSIGNAL);
    if (sent >= 0) return sent;
    if (errno == EINTR) continue;
    if (errno != EAGAIN || !AwaitSocket(POLLOUT, deadline)) return Break();
  }
  return -1;
}

bool Wire::AwaitTls(int result, Time deadline) {
  switch (::SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return AwaitSocket(POLLIN, deadline);
    case SSL_ERROR_WANT_WRITE:
      return AwaitSocket(POLLOUT, deadline);
    default:
      Break();
      return false;
  }
}

bool Wire::AwaitSocket(short events, Time deadline) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now()).count();
    if (left <= 0) return false;
    pollfd peer{.fd = socket_, .events = events, .revents = 0};
    const int ready = ::poll(&peer, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

ssize_t Wire::Break() {
  broken_ = true;
  return -1;
}

}  // namespace meshrun::http
