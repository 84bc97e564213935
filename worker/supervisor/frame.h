// Messages in frames (core/framing.h) on a stream socket: both ends of the supervisor's socket use
// it. Nothing here blocks.
#pragma once

#include <optional>
#include <string>

#include "core/framing.h"
#include "google/protobuf/message_lite.h"

namespace meshrun::worker {

class FrameReader {
 public:
  // Reads what the socket holds now. False when the peer closed it, on an error, and when a length
  // is beyond any message of ours: the connection is useless then, but Next still returns the
  // frames that are whole.
  bool ReadAvailable(int fd);

  // The next whole message's bytes.
  std::optional<std::string> Next();

 private:
  FrameBuffer buffer_;
};

class FrameWriter {
 public:
  void Append(const google::protobuf::MessageLite& message);
  // Writes what the socket takes now. False when the connection is broken.
  bool Flush(int fd);
  bool empty() const { return buffer_.empty(); }

 private:
  std::string buffer_;
};

}  // namespace meshrun::worker
