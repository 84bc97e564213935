#include "core/framing.h"

#include <cstdint>

namespace meshrun {
namespace {

constexpr size_t kHeader = 4;

}  // namespace

void AppendFrame(std::string_view message, std::string* out) {
  const auto length = static_cast<uint32_t>(message.size());
  for (size_t i = 0; i < kHeader; ++i) out->push_back(static_cast<char>(length >> (8 * i)));
  out->append(message);
}

std::optional<std::string> FrameBuffer::Next(size_t longest) {
  if (bytes_.size() < kHeader || IsGarbled(longest)) return std::nullopt;
  const size_t length = NextLength();
  if (bytes_.size() < kHeader + length) return std::nullopt;
  std::string message = bytes_.substr(kHeader, length);
  bytes_.erase(0, kHeader + length);
  return message;
}

bool FrameBuffer::IsGarbled(size_t longest) const {
  return bytes_.size() >= kHeader && NextLength() > longest;
}

size_t FrameBuffer::NextLength() const {
  size_t length = 0;
  for (size_t i = 0; i < kHeader; ++i)
    length |= size_t{static_cast<unsigned char>(bytes_[i])} << (8 * i);
  return length;
}

}  // namespace meshrun
