// Messages on a byte stream: each after its length, four bytes, the lowest first. The supervisor's
// socket and the connections between ranks use it. Pure: reading and writing are the caller's.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace meshrun {

// Adds a frame to *out. `message` is shorter than 4 GiB.
void AppendFrame(std::string_view message, std::string* out);

// What has come of a stream, cut into frames.
class FrameBuffer {
 public:
  void Append(std::string_view bytes) { bytes_.append(bytes); }

  // The next whole frame. Absent while it is incomplete, and for ever once it is garbled.
  std::optional<std::string> Next(size_t longest);

  // A length beyond `longest` stands at the front: what follows means nothing.
  bool IsGarbled(size_t longest) const;

 private:
  size_t NextLength() const;

  std::string bytes_;
};

}  // namespace meshrun
