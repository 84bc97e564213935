#include "parallel/checkpoint/atomic_file.h"

#include <stdexcept>

#include "core/os/files.h"

namespace meshrun {

void write_file_atomically(const std::string& path, std::string_view content) {
  const absl::Status status = os::WriteFileAtomically(path, content, 0666);
  if (!status.ok()) throw std::runtime_error("cannot write " + std::string(status.message()));
}

}  // namespace meshrun
