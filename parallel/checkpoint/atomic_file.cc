#include "parallel/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

namespace meshrun {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& path) {
  throw std::system_error(errno, std::generic_category(), "cannot " + what + " " + path);
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags)
      : path_(path), number_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (number_ < 0) fail("open", path_);
  }
  ~Descriptor() { ::close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  void write(std::string_view content) const {
    while (!content.empty()) {
      const ssize_t written = ::write(number_, content.data(), content.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("write", path_);
      content.remove_prefix(static_cast<size_t>(written));
    }
  }

  void sync() const {
    if (::fsync(number_) != 0) fail("flush", path_);
  }

 private:
  const std::string path_;
  const int number_;
};

}  // namespace

void write_file_atomically(const std::string& path, std::string_view content) {
  const std::string unfinished = path + ".unfinished-" + std::to_string(::getpid());
  try {
    const Descriptor file(unfinished, O_WRONLY | O_CREAT | O_TRUNC);
    file.write(content);
    file.sync();
    if (std::rename(unfinished.c_str(), path.c_str()) != 0) fail("rename to", path);
  } catch (...) {
    ::unlink(unfinished.c_str());
    throw;
  }
  // The rename itself must reach the disk.
  const std::string directory = std::filesystem::path(path).parent_path().string();
  Descriptor(directory.empty() ? "." : directory, O_RDONLY | O_DIRECTORY).sync();
}

}  // namespace meshrun
