#include "tests/parallel/collectives/faults/private_shm.h"

#include <sched.h>
#include <sys/mount.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

namespace meshrun {

PrivateShm::PrivateShm() {
  is_private_ = unshare(CLONE_NEWNS) == 0 &&
                mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                mount("tmpfs", "/dev/shm", "tmpfs", 0, nullptr) == 0;
  before_ = files();
}

std::vector<std::string> PrivateShm::files() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> PrivateShm::left() const {
  const std::vector<std::string> now = files();
  std::vector<std::string> left;
  std::set_difference(now.begin(), now.end(), before_.begin(), before_.end(),
                      std::back_inserter(left));
  return left;
}

}  // namespace meshrun
