// A directory for a test's files, named after the test, and short ways to write and read them.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace meshrun::testing {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = ::testing::TempDir() + test->test_suite_name() + "." + test->name();
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  // Path of a name below it, and itself.
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

  // Returns the file's path.
  std::string Write(const std::string& name, const std::string& content) const {
    const std::filesystem::path path = *this / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path.string();
  }
  std::string Read(const std::string& name) const {
    std::ifstream stream(*this / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

 private:
  std::string path_;
};

}  // namespace meshrun::testing
