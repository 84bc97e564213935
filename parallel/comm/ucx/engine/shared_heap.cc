#include "parallel/comm/ucx/engine/shared_heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "fmt/format.h"
#include "parallel/comm/ucx/engine/header_check.h"

namespace meshrun::ucx {
namespace {

constexpr size_t kDefaultMiB = 1024;

uint64_t this_boot() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  Digest digest;
  for (const char c : id) digest.add(c);
  return digest.value();
}

size_t round_up(size_t bytes) {
  return (bytes + SharedHeap::kGranule - 1) / SharedHeap::kGranule * SharedHeap::kGranule;
}

void* map_shared(int fd, size_t bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
}

size_t bytes_of_environment() {
  const char* text = std::getenv("MESHRUN_SHARED_MEMORY_MIB");
  char* end = nullptr;
  const long given = text == nullptr ? -1 : std::strtol(text, &end, 10);
  const bool is_given = text != nullptr && end != text && *end == '\0' && given >= 0;
  return (is_given ? static_cast<size_t>(given) : kDefaultMiB) << 20;
}

}  // namespace

std::unique_ptr<SharedHeap> SharedHeap::create(size_t bytes) {
  bytes = round_up(bytes);
  uint64_t token = 0;
  if (bytes <= kGranule || getrandom(&token, sizeof(token), 0) != sizeof(token)) return nullptr;
  const int fd = memfd_create("meshrun", MFD_CLOEXEC);
  if (fd < 0) return nullptr;
  void* const base =
      ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? map_shared(fd, bytes) : MAP_FAILED;
  if (base == MAP_FAILED) {
    close(fd);
    return nullptr;
  }
  std::unique_ptr<SharedHeap> heap(new SharedHeap(fd, static_cast<std::byte*>(base), bytes));
  heap->address_ = {this_boot(), token, static_cast<int64_t>(bytes), getpid(), fd};
  std::memcpy(base, &token, sizeof(token));
  return heap;
}

SharedHeap* SharedHeap::of_process() {
  static SharedHeap* const heap = create(bytes_of_environment()).release();
  return heap;
}

// The first page has the token.
SharedHeap::SharedHeap(int fd, std::byte* base, size_t bytes)
    : fd_(fd), base_(base), bytes_(bytes), free_{{kGranule, bytes - kGranule}} {}

SharedHeap::~SharedHeap() {
  munmap(base_, bytes_);
  close(fd_);
}

void* SharedHeap::allocate(size_t bytes) {
  bytes = round_up(bytes == 0 ? 1 : bytes);
  MutexLock lock(mu_);
  for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
    const auto [offset, length] = *hole;
    if (length < bytes) continue;
    free_.erase(hole);
    if (length > bytes) free_[offset + bytes] = length - bytes;
    used_[offset] = bytes;
    used_bytes_ += bytes;
    return base_ + offset;
  }
  return nullptr;
}

void SharedHeap::free(void* block) {
  auto offset = static_cast<size_t>(static_cast<std::byte*>(block) - base_);
  MutexLock lock(mu_);
  const auto used = used_.find(offset);
  size_t length = used->second;
  used_.erase(used);
  used_bytes_ -= length;
  madvise(block, length, MADV_REMOVE);
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + length) {
    length += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += length;
      return;
    }
  }
  free_[offset] = length;
}

std::optional<uint64_t> SharedHeap::offset_of(const void* data, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(data), base = reinterpret_cast<uintptr_t>(base_);
  if (begin < base + kGranule || begin - base > bytes_ || bytes > bytes_ - (begin - base)) {
    return std::nullopt;
  }
  return begin - base;
}

size_t SharedHeap::used_bytes() const {
  MutexLock lock(mu_);
  return used_bytes_;
}

std::unique_ptr<PeerHeap> PeerHeap::open(const HeapAddress& address) {
  const std::string path = fmt::format("/proc/{}/fd/{}", address.pid, address.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  const auto bytes = static_cast<size_t>(address.bytes);
  // Another process may have this number here: look before mapping what may be too short.
  uint64_t token = 0;
  const bool is_its = pread(fd, &token, sizeof(token), 0) == sizeof(token) &&
                      token == address.token && lseek(fd, 0, SEEK_END) == address.bytes;
  void* const base = is_its ? map_shared(fd, bytes) : MAP_FAILED;
  close(fd);
  if (base == MAP_FAILED) return nullptr;
  return std::unique_ptr<PeerHeap>(new PeerHeap(static_cast<std::byte*>(base), bytes));
}

PeerHeap::~PeerHeap() { munmap(base_, bytes_); }

std::byte* PeerHeap::at(uint64_t offset, size_t bytes) const {
  if (offset < SharedHeap::kGranule || offset > bytes_ || bytes > bytes_ - offset) return nullptr;
  return base_ + offset;
}

}  // namespace meshrun::ucx
