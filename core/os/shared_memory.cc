#include "core/os/shared_memory.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

namespace meshrun::os {
namespace {

double MiB(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

std::optional<SharedMemoryRoom> FindSharedMemoryRoom() {
  struct statvfs info;
  if (::statvfs(kSharedMemoryPath, &info) != 0) return std::nullopt;
  return SharedMemoryRoom{uint64_t{info.f_blocks} * info.f_frsize,
                          uint64_t{info.f_bavail} * info.f_frsize};
}

std::string Describe(const SharedMemoryRoom& room) {
  return fmt::format(
      "{} has {:.1f} MiB, of which {:.1f} MiB are free: room for {} more rank{} of {:.1f} MiB each",
      kSharedMemoryPath, MiB(room.total_bytes), MiB(room.free_bytes), room.ranks(),
      room.ranks() == 1 ? "" : "s", MiB(kSharedMemoryPerRank));
}

}  // namespace meshrun::os
