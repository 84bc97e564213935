#include "core/os/user.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <vector>

#include "core/os/files.h"

namespace meshrun::os {
namespace {

using Lookup = std::function<int(passwd*, char*, size_t, passwd**)>;

// `what` for messages.
absl::StatusOr<User> Find(const std::string& what, const Lookup& lookup) {
  std::vector<char> buffer(1 << 14);
  passwd entry;
  passwd* found = nullptr;
  int error = lookup(&entry, buffer.data(), buffer.size(), &found);
  while (error == ERANGE && buffer.size() < (1u << 20)) {
    buffer.resize(buffer.size() * 2);
    error = lookup(&entry, buffer.data(), buffer.size(), &found);
  }
  if (found == nullptr) {
    if (error != 0 && error != ENOENT && error != ESRCH) return ErrnoStatus(error, what);
    return absl::NotFoundError(fmt::format("this host has no {}", what));
  }
  return User{.name = entry.pw_name,
              .uid = entry.pw_uid,
              .gid = entry.pw_gid,
              .home = entry.pw_dir,
              .shell = entry.pw_shell};
}

}  // namespace

absl::StatusOr<User> FindUser(const std::string& name) {
  return Find(fmt::format("user '{}'", name),
              [&name](passwd* entry, char* buffer, size_t size, passwd** found) {
                return ::getpwnam_r(name.c_str(), entry, buffer, size, found);
              });
}

std::vector<gid_t> GroupsOf(const User& user) {
  std::vector<gid_t> groups(64);
  int count = static_cast<int>(groups.size());
  while (::getgrouplist(user.name.c_str(), user.gid, groups.data(), &count) < 0) {
    groups.resize(std::max<size_t>(count, groups.size() * 2));
    count = static_cast<int>(groups.size());
  }
  groups.resize(count);
  return groups;
}

std::string UserName() {
  const uid_t uid = ::geteuid();
  const auto user = Find(fmt::format("user {}", uid),
                         [uid](passwd* entry, char* buffer, size_t size, passwd** found) {
                           return ::getpwuid_r(uid, entry, buffer, size, found);
                         });
  return user.ok() ? user->name : std::to_string(uid);
}

}  // namespace meshrun::os
