#include "tests/house/file_lengths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <string_view>

namespace meshrun::house {

void PrintTo(const LongFile& file, std::ostream* out) { *out << file.file << ": " << file.lines; }

namespace {

constexpr int kMostLines = 450;
// Files that may be longer. Never rises.
constexpr size_t kMostLongFiles = 3;

TEST(FileLengthsTest, FewFilesOfTheProductAreLong) {
  // The source tree that holds the file which this link of the test's runfiles leads to.
  const auto root = std::filesystem::canonical("WORKSPACE").parent_path();
  ASSERT_TRUE(std::filesystem::exists(root / "tests/house/file_lengths_test.cc"))
      << root << " is not the source tree";
  EXPECT_THAT(FindLongFiles(root, kMostLines), testing::SizeIs(testing::Le(kMostLongFiles)))
      << "more than " << kMostLines << " lines: split a file where it is two things";
}

TEST(FileLengthsTest, SourcesAndScriptsOfTheProductAreCounted) {
  const auto root = std::filesystem::path(testing::TempDir()) / "house/file_lengths";
  std::filesystem::remove_all(root);
  const auto write = [&](std::string_view path, int lines, const std::string& first = "") {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream stream(root / path);
    stream << first;
    for (int i = first.empty() ? 0 : 1; i < lines; ++i) stream << "line\n";
  };
  write("core/as_long_as_allowed.cc", 5);
  write("core/longer.cc", 6);
  write("parallel/deep/folder/a.h", 8);
  write("parallel/kernels/a.cu", 6);
  write("deploy/client.py", 7);
  write("python/meshrun/long.py", 10);
  write("tools/script", 9, "#!/bin/sh\n");
  write("tools/text", 9, "Not a script\n");
  write("proto/a.proto", 9);
  write("tests/core/a_test.cc", 9);
  write("third_party/a.h", 9);
  write("reactor/own_project.cc", 9);
  write("core/.hidden/a.cc", 9);
  std::filesystem::create_symlink(root / "core/longer.cc", root / "core/link.cc");
  EXPECT_THAT(
      FindLongFiles(root, 5),
      testing::ElementsAre(LongFile{"python/meshrun/long.py", 10}, LongFile{"tools/script", 9},
                           LongFile{"parallel/deep/folder/a.h", 8}, LongFile{"deploy/client.py", 7},
                           LongFile{"core/longer.cc", 6}, LongFile{"parallel/kernels/a.cu", 6}));
}

}  // namespace
}  // namespace meshrun::house
