#include "worker/supervisor/frame.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstdint>

namespace meshrun::worker {
namespace {

constexpr size_t kHeader = 4;
constexpr uint32_t kLargestFrame = 64 << 20;

uint32_t LengthAt(const std::string& buffer) {
  uint32_t length = 0;
  for (size_t i = 0; i < kHeader; ++i) {
    length |= static_cast<uint32_t>(static_cast<unsigned char>(buffer[i])) << (8 * i);
  }
  return length;
}

}  // namespace

bool FrameReader::ReadAvailable(int fd) {
  char chunk[1 << 16];
  while (true) {
    const ssize_t n = ::recv(fd, chunk, sizeof(chunk), MSG_DONTWAIT);
    if (n > 0) {
      buffer_.append(chunk, n);
      if (buffer_.size() >= kHeader && LengthAt(buffer_) > kLargestFrame) return false;
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    }
  }
}

std::optional<std::string> FrameReader::Next() {
  if (buffer_.size() < kHeader) return std::nullopt;
  const size_t length = LengthAt(buffer_);
  if (length > kLargestFrame || buffer_.size() < kHeader + length) return std::nullopt;
  std::string message = buffer_.substr(kHeader, length);
  buffer_.erase(0, kHeader + length);
  return message;
}

void FrameWriter::Append(const google::protobuf::MessageLite& message) {
  const uint32_t length = static_cast<uint32_t>(message.ByteSizeLong());
  for (size_t i = 0; i < kHeader; ++i) buffer_.push_back(static_cast<char>(length >> (8 * i)));
  message.AppendToString(&buffer_);
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
