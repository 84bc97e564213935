// Files that a reader sees whole or not at all.
#pragma once

#include <string>
#include <string_view>

namespace meshrun {

// Writes beside `path`, flushes to the disk, renames: after a crash at any moment `path` holds what
// it held before or all of `content`. Raises std::runtime_error, whose text names the path and the
// reason.
void write_file_atomically(const std::string& path, std::string_view content);

}  // namespace meshrun
