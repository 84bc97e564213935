// Files that a reader sees whole or not at all.
#pragma once

#include <string>
#include <string_view>

namespace meshrun {

// Writes a file beside `path`, flushes it to the disk and renames it: after a crash at any moment
// `path` has either its former content or all of `content`. Raises std::runtime_error; the text
// names the path and the reason.
void write_file_atomically(const std::string& path, std::string_view content);

// The whole content. Raises as write_file_atomically() does.
std::string read_file(const std::string& path);

}  // namespace meshrun
