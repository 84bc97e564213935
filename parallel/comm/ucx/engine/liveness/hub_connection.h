// One end of a connection between the hub of a HubWatch and another rank: frames (core/framing.h)
// over a socket that never blocks.
//
// Threads: one at a time. Errors: read() says that the other end is gone, and why; a frame that is
// too long is never complete, and is_garbled() says so.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/framing.h"
#include "core/os/fd.h"

namespace meshrun::ucx {

// A report lists the members of a group, a verdict those of several; what is longer is not sent,
// and the operation's timeout decides.
constexpr size_t kLongestFrame = 1 << 20;

// What a frame says: at most so many words, the last of which is the rest.
std::vector<std::string_view> words(std::string_view text, size_t most);

class HubConnection {
 public:
  // Connected. A dead host is noticed within 5 s from now on, whether or not something is sent.
  explicit HubConnection(os::UniqueFd fd);

  int fd() const { return fd_.get(); }
  bool wants_to_write() const { return !out_.empty(); }

  void write(std::string_view frame);
  void flush();
  // After what is written.
  void end();
  // What has come, or part of it. False: nothing more does, for the reason given.
  bool read(std::string* reason);
  // The next of what was read; absent: it is not all there, or never will be.
  std::optional<std::string> next();
  bool is_garbled() const;

  int rank = -1;  // -1: a stranger
  bool has_left = false;
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();

 private:
  size_t longest() const;

  os::UniqueFd fd_;
  FrameBuffer in_;
  std::string out_;
  bool is_ending_ = false;
};

}  // namespace meshrun::ucx
