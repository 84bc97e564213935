#include "worker/cgroups/control_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>

#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/parse_integer.h"

namespace meshrun::worker {

absl::Status Write(const std::string& path, std::string_view value) {
  const os::UniqueFd file(::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  if (!file) return os::ErrnoStatus(errno, path);
  if (::write(file.get(), value.data(), value.size()) < 0) return os::ErrnoStatus(errno, path);
  return absl::OkStatus();
}

std::vector<std::string> Words(const std::string& path) {
  const auto content = os::ReadFile(path);
  std::stringstream stream(content.ok() ? *content : "");
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::optional<uint64_t> NumberIn(const std::string& path) {
  const std::vector<std::string> words = Words(path);
  return words.empty() ? std::nullopt : ParseInteger<uint64_t>(words[0]);
}

uint64_t NumberAfter(const std::string& path, std::string_view name) {
  const std::vector<std::string> words = Words(path);
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == name) return ParseInteger<uint64_t>(words[i + 1]).value_or(0);
  }
  return 0;
}

}  // namespace meshrun::worker
