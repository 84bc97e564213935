// Room in /dev/shm, where UCX keeps the files through which ranks of one host exchange messages.
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace meshrun::os {

inline constexpr const char* kSharedMemoryPath = "/dev/shm";
// What UCX takes of it for each rank that it serves (1.13: 4,292,720 bytes and a queue).
inline constexpr uint64_t kSharedMemoryPerRank = (uint64_t{42} << 20) / 10;

struct SharedMemoryRoom {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;

  // How many more ranks it holds.
  uint64_t ranks() const { return free_bytes / kSharedMemoryPerRank; }
};

// Absent: it is not mounted.
std::optional<SharedMemoryRoom> FindSharedMemoryRoom();

// "/dev/shm has 8.0 MiB, of which 3.7 MiB are free: room for 0 more ranks of 4.2 MiB each"
std::string Describe(const SharedMemoryRoom& room);

}  // namespace meshrun::os
