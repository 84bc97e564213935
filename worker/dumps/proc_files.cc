#include "worker/dumps/proc_files.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <ios>
#include <sstream>
#include <system_error>

#include "core/os/files.h"

namespace meshrun::worker {
namespace {

constexpr size_t kMostThreads = 512;
constexpr size_t kMostLibraries = 16;

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

std::vector<MappedLibrary> LargeLibraries(const std::string& maps, uint64_t bytes) {
  std::vector<MappedLibrary> libraries;
  std::istringstream lines(maps);
  for (std::string line; std::getline(lines, line) && libraries.size() < kMostLibraries;) {
    // "7f8c9000-7f8ca000 r--p 00000000 08:01 1234 /lib/libtorch_cpu.so"
    std::istringstream fields(line);
    MappedLibrary library;
    std::string rights, device;
    uint64_t offset = 0, inode = 0;
    char dash = 0;
    uint64_t end = 0;
    fields >> std::hex >> library.address >> dash >> end >> rights >> offset >> device >>
        std::dec >> inode >> std::ws;
    if (!std::getline(fields, library.path) || offset != 0) continue;
    if (!library.path.starts_with('/') || library.path.find(".so") == std::string::npos) continue;
    struct stat file = {};
    if (::stat(library.path.c_str(), &file) != 0 || !S_ISREG(file.st_mode) ||
        file.st_ino != inode || static_cast<uint64_t>(file.st_size) < bytes) {
      continue;
    }
    const bool known =
        std::any_of(libraries.begin(), libraries.end(),
                    [&](const MappedLibrary& other) { return other.path == library.path; });
    if (!known) libraries.push_back(std::move(library));
  }
  return libraries;
}

}  // namespace meshrun::worker
