// Standard output or error, as bytes: buffered, and a write that fails is remembered, not fatal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace meshrun::client {

class OutputStream {
 public:
  explicit OutputStream(int fd) : fd_(fd) {}
  ~OutputStream() { Flush(); }
  OutputStream(const OutputStream&) = delete;
  OutputStream& operator=(const OutputStream&) = delete;

  void Write(std::string_view text);
  // Waits as long as the reader does. After an error the next bytes are tried again.
  void Flush();

  // The reader of a pipe has left: nothing can be written any more.
  bool reader_gone() const { return reader_gone_; }
  // errno of the first failed write; 0: none.
  int error() const { return error_; }
  // Bytes that were not written because of errors.
  uint64_t lost() const { return lost_; }

 private:
  const int fd_;
  std::string buffer_;
  bool reader_gone_ = false;
  int error_ = 0;
  uint64_t lost_ = 0;
};

}  // namespace meshrun::client
