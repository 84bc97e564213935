// Users of this host.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace meshrun::os {

struct User {
  std::string name;
  uid_t uid = 0;
  gid_t gid = 0;
  std::string home;
  std::string shell;
};

// NOT_FOUND: this host knows nobody of that name. May ask a directory service, and so may take its
// time.
absl::StatusOr<User> FindUser(const std::string& name);

// Supplementary groups, the user's own among them. As FindUser.
std::vector<gid_t> GroupsOf(const User& user);

// Name of this process's user; the user's number if it has no name.
std::string UserName();

}  // namespace meshrun::os
