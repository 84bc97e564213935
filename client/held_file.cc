#include "client/held_file.h"

#include <fcntl.h>
#include <time.h>

namespace meshrun::client {

os::UniqueFd TryLock(const std::string& path, int flags, int operation) {
  os::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600));
  struct stat ours;
  struct stat named;
  if (!fd || ::flock(fd.get(), operation | LOCK_NB) != 0 || ::fstat(fd.get(), &ours) != 0 ||
      ::stat(path.c_str(), &named) != 0 || ours.st_ino != named.st_ino ||
      ours.st_dev != named.st_dev) {
    fd.reset();
  }
  return fd;
}

std::chrono::nanoseconds Age(const struct stat& info) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::chrono::seconds(now.tv_sec - info.st_mtim.tv_sec) +
         std::chrono::nanoseconds(now.tv_nsec - info.st_mtim.tv_nsec);
}

}  // namespace meshrun::client
