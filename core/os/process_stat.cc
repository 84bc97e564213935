#include "core/os/process_stat.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "core/os/fd.h"
#include "core/parse_integer.h"

namespace meshrun::os {
namespace {

// Takes the first word off the front; empty if none is left.
std::string_view TakeWord(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \n"), text.size()));
  const std::string_view word = text.substr(0, text.find_first_of(" \n"));
  text.remove_prefix(word.size());
  return word;
}

// False if `word` is not a number that fits.
template <typename Int>
bool Read(std::string_view word, Int* number) {
  const std::optional<Int> read = ParseInteger<Int>(word);
  if (read.has_value()) *number = *read;
  return read.has_value();
}

}  // namespace

std::optional<ProcessStat> ParseProcessStat(std::string_view line) {
  // "pid (name) state ppid ...": the name may hold anything, also ") ".
  const size_t end_of_name = line.rfind(')');
  if (end_of_name == std::string_view::npos) return std::nullopt;
  // Fields are counted from 1, as in proc(5); 3 is the first behind the name.
  constexpr size_t kState = 3, kParent = 4, kSession = 6, kThreads = 20, kStart = 22;
  std::array<std::string_view, kStart + 1> fields;
  std::string_view rest = line.substr(end_of_name + 1);
  for (size_t field = kState; field <= kStart; ++field) fields[field] = TakeWord(rest);
  ProcessStat stat;
  if (fields[kState].size() != 1 || !Read(line.substr(0, line.find(' ')), &stat.pid) ||
      !Read(fields[kParent], &stat.parent) || !Read(fields[kSession], &stat.session) ||
      !Read(fields[kThreads], &stat.threads) || !Read(fields[kStart], &stat.start_ticks)) {
    return std::nullopt;
  }
  stat.state = fields[kState][0];
  return stat;
}

std::vector<pid_t> AllPids() {
  std::vector<pid_t> pids;
  DIR* const proc = ::opendir("/proc");
  if (proc == nullptr) return pids;
  while (const dirent* entry = ::readdir(proc)) {
    if (const auto pid = ParseInteger<pid_t>(entry->d_name)) pids.push_back(*pid);
  }
  ::closedir(proc);
  return pids;
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
