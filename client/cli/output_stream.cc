#include "client/cli/output_stream.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace meshrun::client {
namespace {

constexpr size_t kBuffer = size_t{64} << 10;

}  // namespace

void OutputStream::Write(std::string_view text) {
  if (reader_gone_) return;
  buffer_ += text;
  if (buffer_.size() >= kBuffer) Flush();
}

void OutputStream::Flush() {
  size_t written = 0;
  while (written < buffer_.size() && !reader_gone_) {
    const ssize_t n = ::write(fd_, buffer_.data() + written, buffer_.size() - written);
    if (n > 0) {
      written += static_cast<size_t>(n);
    } else if (n < 0 && errno == EAGAIN) {
      // Another process made the terminal or pipe non-blocking.
      pollfd room{fd_, POLLOUT, 0};
      ::poll(&room, 1, -1);
    } else if (n < 0 && errno == EPIPE) {
      reader_gone_ = true;
    } else if (n < 0 && errno != EINTR) {
      if (error_ == 0) error_ = errno;
      lost_ += buffer_.size() - written;
      break;
    }
  }
  buffer_.clear();
}

}  // namespace meshrun::client
