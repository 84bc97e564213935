// Shared-memory files under /dev/shm of this process and its children alone, where the kernel lets
// us: so that what they leave behind is theirs.
#pragma once

#include <string>
#include <vector>

namespace meshrun {

class PrivateShm {
 public:
  // A mount namespace of its own with an empty /dev/shm. Needs CAP_SYS_ADMIN; without it the
  // machine's /dev/shm is looked at, where other programs' files come and go. To be made before
  // the process has threads.
  PrivateShm();

  bool is_private() const { return is_private_; }
  // Files that were not there at the start.
  std::vector<std::string> left() const;

 private:
  static std::vector<std::string> files();
  bool is_private_ = false;
  std::vector<std::string> before_;
};

}  // namespace meshrun
