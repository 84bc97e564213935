// The files by which the kernel is told and tells of cgroups.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace meshrun::worker {

// Into a file that is there. The kernel's refusal is the error, and errno.
absl::Status Write(const std::string& path, std::string_view value);
// None where there is no such file.
std::vector<std::string> Words(const std::string& path);
// The number that a file begins with; absent: there is none ("max").
std::optional<uint64_t> NumberIn(const std::string& path);
// The number after `name` in a file of lines "name number"; 0: there is none.
uint64_t NumberAfter(const std::string& path, std::string_view name);

}  // namespace meshrun::worker
