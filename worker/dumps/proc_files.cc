#include "worker/dumps/proc_files.h"

#include <sstream>

#include "core/os/files.h"

namespace meshrun::worker {

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

}  // namespace meshrun::worker
