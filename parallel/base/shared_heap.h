// Memory of this process that ranks on the same host may write into and read: results of
// collectives and the engine's scratch memory. A sender copies its bytes straight to their place,
// or a receiver from there, in one pass and without a system call. Through the kernel (CMA) each
// page is looked up and pinned as well, and the receiver does all the work.
//
// The heap is a memfd. Peers map /proc/<pid>/fd/<fd> if the kernel lets them (same user, a pid
// namespace in which they see the process), and check a random number in its first bytes. Nothing
// has a name in the file system, and nothing remains when the processes are gone. Pages are taken
// when they are first written, on the owner's NUMA node whoever writes, and given back when their
// block is freed. (An owner whose cores lie on several nodes has none: see numa.h.) After fork() a
// child shares these pages with its parent: the parent reads what the child writes. The child frees
// none of them, and has its own heap for its own blocks. A thread may fork while others allocate:
// fork() waits for the heap's lock, so a child never inherits it held.
//
// Threads: SharedHeap: any. PeerHeap: one at a time. Errors: create() returns null if the kernel
// refuses, PeerHeap::open() if the heap cannot be reached; only speed is lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "core/mutex.h"
#include "core/os/fd.h"

namespace meshrun {

// Where a process's heap is. Part of its AddressRecord.
struct HeapAddress {
  uint64_t host = 0;  // digest of node_identity(); only ranks with the same number try
  uint64_t token = 0;
  int64_t bytes = 0;  // 0: it has none
  int32_t pid = 0;
  int32_t fd = -1;
};

// Whether both ends of a message have heaps that they might reach. Symmetric.
inline bool may_share(const HeapAddress& a, const HeapAddress& b) {
  return a.bytes > 0 && b.bytes > 0 && a.host == b.host;
}

class SharedHeap {
 public:
  // Blocks begin at multiples of this, and their sizes are multiples of it: a page.
  static constexpr size_t kGranule = 4096;

  // Null: the kernel has no memfd, or too little address space.
  static std::unique_ptr<SharedHeap> create(size_t bytes);
  // Heap of this process, of MESHRUN_SHARED_MEMORY_MIB (1024) MiB, made by the first call. Null if
  // that size is 0, if the heap cannot be made, or if UCX_TLS names no transport over shared
  // memory. Never destroyed.
  static SharedHeap* of_process();
  ~SharedHeap();

  SharedHeap(const SharedHeap&) = delete;
  SharedHeap& operator=(const SharedHeap&) = delete;

  // Null: no room.
  void* allocate(size_t bytes) MESHRUN_EXCLUDES(mu_);
  // Gives the pages back.
  void free(void* block) MESHRUN_EXCLUDES(mu_);

  // In a child of the process that made the heap: nothing is allocated or freed in it any more.
  bool is_inherited() const;

  const HeapAddress& address() const { return address_; }
  // The NUMA node that its pages lie on whoever writes them first. Absent: on the writer's.
  std::optional<int> numa_node() const { return node_; }
  // Where [data, data + bytes) is, if it is in here.
  std::optional<uint64_t> offset_of(const void* data, size_t bytes) const;
  size_t used_bytes() const MESHRUN_EXCLUDES(mu_);
  // Bytes of used and unused blocks together.
  size_t size() const { return bytes_ - kGranule; }

  // Lock and unlock the process's heap around fork().
  static void lock_for_fork();
  static void unlock_after_fork();

 private:
  SharedHeap(os::UniqueFd fd, std::byte* base, size_t bytes);

  const os::UniqueFd fd_;
  std::byte* const base_;
  const size_t bytes_;
  const int forks_;
  HeapAddress address_;
  std::optional<int> node_;
  mutable Mutex mu_;
  // Offset to length; neighbours are one.
  std::map<size_t, size_t> free_ MESHRUN_GUARDED_BY(mu_);
  std::map<size_t, size_t> used_ MESHRUN_GUARDED_BY(mu_);
  size_t used_bytes_ MESHRUN_GUARDED_BY(mu_) = 0;
};

// Another process's heap, mapped here.
class PeerHeap {
 public:
  static std::unique_ptr<PeerHeap> open(const HeapAddress& address);
  ~PeerHeap();

  PeerHeap(const PeerHeap&) = delete;
  PeerHeap& operator=(const PeerHeap&) = delete;

  // Null: outside of it.
  std::byte* at(uint64_t offset, size_t bytes) const;
  // Whether the heap's process has ended with all its threads, so that it writes nowhere any more.
  // False also if that cannot be determined. Reads /proc.
  bool has_owner_ended() const;

 private:
  PeerHeap(const HeapAddress& address, uint64_t owner_started, std::byte* base, size_t bytes)
      : address_(address), owner_started_(owner_started), base_(base), bytes_(bytes) {}

  const HeapAddress address_;
  const uint64_t owner_started_;  // process numbers are used again
  std::byte* const base_;
  const size_t bytes_;
};

}  // namespace meshrun
