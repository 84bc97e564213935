// A place for one checkpoint on the file system that is verified, gone with this object.
//
// No LibTorch. Threads: any. No errors: what cannot be removed stays.
#pragma once

#include <chrono>
#include <string>
#include <utility>

namespace meshrun::verify {

class ScratchDirectory {
 public:
  // Whoever writes there makes it.
  explicit ScratchDirectory(std::string path) : path_(std::move(path)) {}
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::string& path() const { return path_; }
  // For a process that ends without destructors: removes it, and gives up after `most`, since a
  // file system that hangs must not hold that process.
  void remove_within(std::chrono::milliseconds most) const;

 private:
  const std::string path_;
};

}  // namespace meshrun::verify
