#include "parallel/checkpoint/atomic_file.h"

#include <stdexcept>
#include <utility>

#include "core/os/files.h"

namespace meshrun {

void write_file_atomically(const std::string& path, std::string_view content) {
  const absl::Status status = os::WriteFileAtomically(path, content, 0666);
  if (!status.ok()) throw std::runtime_error("cannot write " + std::string(status.message()));
}

std::string read_file(const std::string& path) {
  absl::StatusOr<std::string> content = os::ReadFile(path);
  if (!content.ok()) {
    throw std::runtime_error("cannot read " + std::string(content.status().message()));
  }
  return *std::move(content);
}

}  // namespace meshrun
