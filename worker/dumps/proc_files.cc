#include "worker/dumps/proc_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <sstream>
#include <system_error>

#include "core/os/files.h"

namespace meshrun::worker {
namespace {

constexpr size_t kMostThreads = 512;

}  // namespace

std::string ReadProcFile(const std::string& path) { return os::ReadFile(path).value_or(""); }

std::string StatusField(const std::string& status, std::string_view name) {
  std::istringstream lines(status);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') continue;
    const size_t value = line.find_first_not_of(" \t", name.size() + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "?";
}

std::vector<std::string> ThreadDirectories(pid_t pid) {
  std::vector<std::string> threads;
  std::error_code error;
  for (const auto& thread :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    if (threads.size() < kMostThreads) threads.push_back(thread.path().string());
  }
  return threads;
}

}  // namespace meshrun::worker
