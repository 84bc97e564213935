#include "core/os/process_stat.h"

#include <fcntl.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "core/os/fd.h"

namespace meshrun::os {

std::optional<ProcessStat> ParseProcessStat(std::string_view line) {
  // "pid (name) state ppid ...": the name may hold anything, also ") ".
  const size_t end_of_name = line.rfind(')');
  if (end_of_name == std::string_view::npos) return std::nullopt;
  const std::string rest(line.substr(end_of_name + 1));
  ProcessStat stat;
  stat.pid = static_cast<pid_t>(std::strtol(std::string(line).c_str(), nullptr, 10));
  // Fields 3 (state), 4 (parent), 6 (session), 20 (threads) and 22 (start time).
  const int found = std::sscanf(
      rest.c_str(),
      " %c %d %*d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %" SCNd64 " %*d %" SCNu64,
      &stat.state, &stat.parent, &stat.session, &stat.threads, &stat.start_ticks);
  if (found != 5) return std::nullopt;
  return stat;
}

std::optional<ProcessStat> ReadProcessStat(pid_t pid) {
  char path[32];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  const UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  if (!fd) return std::nullopt;
  char buffer[1024];
  const ssize_t n = ::read(fd.get(), buffer, sizeof(buffer));
  if (n <= 0) return std::nullopt;
  return ParseProcessStat({buffer, static_cast<size_t>(n)});
}

}  // namespace meshrun::os
