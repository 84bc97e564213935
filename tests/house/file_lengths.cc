#include "tests/house/file_lengths.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>
#include <tuple>

namespace meshrun::house {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 12> kProduct = {
    "agent", "client",   "coordinator", "core",   "deploy", "examples",
    "jobs",  "parallel", "proto",       "python", "tools",  "worker"};

bool HasSourceEnding(const fs::path& path) {
  static constexpr std::array<std::string_view, 5> kEndings = {".cc", ".h", ".cu", ".cuh", ".py"};
  return std::find(kEndings.begin(), kEndings.end(), path.extension()) != kEndings.end();
}

// Lines of a source; 0 for any other file.
int CountLines(const fs::path& path) {
  if (!HasSourceEnding(path) && path.has_extension()) return 0;
  std::ifstream stream(path);
  int count = 0;
  for (std::string line; std::getline(stream, line); ++count) {
    if (count == 0 && !path.has_extension() && !line.starts_with("#!")) return 0;
  }
  return count;
}

}  // namespace

std::vector<LongFile> FindLongFiles(const fs::path& root, int most) {
  std::vector<LongFile> found;
  for (const std::string_view folder : kProduct) {
    if (!fs::is_directory(root / folder)) continue;
    for (auto entry = fs::recursive_directory_iterator(root / folder); entry != fs::end(entry);
         ++entry) {
      if (entry->is_symlink()) continue;
      if (entry->is_directory()) {
        if (entry->path().filename().string().starts_with('.')) entry.disable_recursion_pending();
        continue;
      }
      const int lines = CountLines(entry->path());
      if (lines > most) found.push_back({entry->path().lexically_relative(root).string(), lines});
    }
  }
  std::sort(found.begin(), found.end(), [](const LongFile& a, const LongFile& b) {
    return std::tuple(-a.lines, a.file) < std::tuple(-b.lines, b.file);
  });
  return found;
}

}  // namespace meshrun::house
