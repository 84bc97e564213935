// Files that say by a lock that their process lives: the lock is free once the process is gone,
// however it went.
#pragma once

#include <sys/file.h>
#include <sys/stat.h>

#include <chrono>
#include <string>

#include "core/os/fd.h"

namespace meshrun::client {

// Opens a file with `flags` beside O_RDWR and takes its lock: LOCK_EX, or LOCK_SH to find out
// whether it is held. Empty when another process holds it, when there is no such file, or when it
// was removed meanwhile: a lock on a removed file has no effect.
os::UniqueFd TryLock(const std::string& path, int flags, int operation = LOCK_EX);

// A new file is not locked for a moment: a young one is never taken for abandoned.
inline constexpr std::chrono::seconds kYoungFile{10};
// How long ago it was changed.
std::chrono::nanoseconds Age(const struct stat& info);

}  // namespace meshrun::client
