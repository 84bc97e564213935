#include "agent/picture.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/os/fd.h"
#include "core/os/write_all.h"
#include "core/picture_name.h"

namespace meshrun::agent {
namespace {

const char* PictureDirectory() {
  const char* const path = std::getenv("MESHRUN_PICTURES");
  return path != nullptr && *path != '\0' ? path : nullptr;
}

}  // namespace

bool ShowsPictures() { return PictureDirectory() != nullptr; }

std::string ShowPicture(const std::string& name, std::string_view bytes) {
  if (PictureType(name).empty()) return NotAPictureName(name);
  if (bytes.empty() || bytes.size() > kMostPictureBytes) {
    return fmt::format("picture {} has {} bytes: show one with 1 to {}", name, bytes.size(),
                       kMostPictureBytes);
  }
  const char* const directory = PictureDirectory();
  if (directory == nullptr) return "";
  // Its name begins with a dot: nobody sees it before it is whole.
  const std::string temporary = fmt::format("{}/.{}", directory, name);
  const std::string path = fmt::format("{}/{}", directory, name);
  os::UniqueFd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const bool written = file && os::WriteAll(file.get(), bytes);
  if (written && ::rename(temporary.c_str(), path.c_str()) == 0) return "";
  const int error = errno;
  if (file) ::unlink(temporary.c_str());
  return fmt::format("{}: {}", path, std::strerror(error));
}

}  // namespace meshrun::agent
