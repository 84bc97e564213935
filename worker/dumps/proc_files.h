// Files of /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshrun::worker {

inline constexpr char kPtraceScope[] = "/proc/sys/kernel/yama/ptrace_scope";

// Empty where it cannot be read.
std::string ReadProcFile(const std::string& path);

// Value of a line "Name:\tvalue" of /proc/PID/status; "?" where there is none.
std::string StatusField(const std::string& status, std::string_view name);

// Directories of a process's threads, 512 at most.
std::vector<std::string> ThreadDirectories(pid_t pid);

struct MappedLibrary {
  std::string path;
  // Where its beginning lies in the process.
  uint64_t address = 0;
};
// Shared libraries in /proc/PID/maps that are files of at least `bytes` here, too, and the same
// ones; 16 at most.
std::vector<MappedLibrary> LargeLibraries(const std::string& maps, uint64_t bytes);

}  // namespace meshrun::worker
