// Words that the jobs' sentences and reports share.
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>

namespace meshrun::jobs {

// printf's, for results of at most 255 bytes.
template <typename... Values>
std::string format(const char* pattern, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

inline std::string ranks(int world_size) {
  return std::to_string(world_size) + (world_size == 1 ? " rank" : " ranks");
}

inline std::string absolute(const std::string& path) {
  return path.empty() ? "" : std::filesystem::absolute(path).lexically_normal().string();
}

// For CLI11. An output file can be written only where its directory exists; better said before the
// work than after it.
inline std::string check_directory(const std::string& path) {
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  if (path.empty() || directory.empty() || std::filesystem::is_directory(directory)) return "";
  return "the directory " + directory.string() + " does not exist";
}

}  // namespace meshrun::jobs
