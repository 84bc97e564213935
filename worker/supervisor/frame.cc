#include "worker/supervisor/frame.h"

#include <sys/socket.h>

#include <cerrno>

namespace meshrun::worker {
namespace {

constexpr size_t kLongestFrame = 64 << 20;

}  // namespace

bool FrameReader::ReadAvailable(int fd) {
  char chunk[1 << 16];
  while (true) {
    const ssize_t n = ::recv(fd, chunk, sizeof(chunk), MSG_DONTWAIT);
    if (n > 0) {
      buffer_.Append(std::string_view(chunk, n));
      if (buffer_.IsGarbled(kLongestFrame)) return false;
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    }
  }
}

std::optional<std::string> FrameReader::Next() { return buffer_.Next(kLongestFrame); }

void FrameWriter::Append(const google::protobuf::MessageLite& message) {
  AppendFrame(message.SerializeAsString(), &buffer_);
}

bool FrameWriter::Flush(int fd) {
  while (!buffer_.empty()) {
    const ssize_t n = ::send(fd, buffer_.data(), buffer_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      buffer_.erase(0, n);
    } else if (errno != EINTR) {
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
  }
  return true;
}

}  // namespace meshrun::worker
