// Files of /proc.
#pragma once

#include <string>
#include <string_view>

namespace meshrun::worker {

inline constexpr char kPtraceScope[] = "/proc/sys/kernel/yama/ptrace_scope";

// Empty where it cannot be read.
std::string ReadProcFile(const std::string& path);

// Value of a line "Name:\tvalue" of /proc/PID/status; "?" where there is none.
std::string StatusField(const std::string& status, std::string_view name);

}  // namespace meshrun::worker
