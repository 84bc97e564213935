#include "worker/supervisor/rank_user.h"

#include <grp.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "core/os/files.h"

namespace meshrun::worker {

absl::Status Become(const v1::RankUser& user) {
  const std::vector<gid_t> groups(user.groups().begin(), user.groups().end());
  if (::setgroups(groups.size(), groups.data()) != 0 ||
      ::setresgid(user.gid(), user.gid(), user.gid()) != 0 ||
      ::setresuid(user.uid(), user.uid(), user.uid()) != 0) {
    return os::ErrnoStatus(errno, "as " + user.name());
  }
  return absl::OkStatus();
}

}  // namespace meshrun::worker
