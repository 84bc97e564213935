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

}  // namespace meshrun::jobs
