#include "parallel/base/shared_heap.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "core/os/fd.h"
#include "core/os/process_stat.h"
#include "fmt/format.h"
#include "parallel/base/digest.h"
#include "parallel/base/numa.h"
#include "parallel/base/process.h"

namespace meshrun {
namespace {

constexpr size_t kDefaultMiB = 1024;
constexpr const char* kName = "meshrun";

size_t round_up(size_t bytes) {
  return (bytes + SharedHeap::kGranule - 1) / SharedHeap::kGranule * SharedHeap::kGranule;
}

void* map_shared(int fd, size_t bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
}

// Whoever tells UCX which transports to take, and names none over shared memory, means it.
bool is_wanted() {
  const char* text = std::getenv("UCX_TLS");
  if (text == nullptr || *text == '^') return true;
  static constexpr std::string_view kShared[] = {"all",   "shm",  "sm",  "mm",
                                                 "posix", "sysv", "cma", "xpmem"};
  std::string_view names = text;
  while (!names.empty()) {
    const size_t end = std::min(names.find(','), names.size());
    if (std::ranges::find(kShared, names.substr(0, end)) != std::end(kShared)) return true;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

// The process's heap. `making` is held while one is made, and both locks around fork().
constinit Mutex making;
constinit std::atomic<SharedHeap*> of_this_process{nullptr};
constinit std::atomic<bool> is_made{false};
const bool is_ready_for_fork [[maybe_unused]] =
    pthread_atfork(&SharedHeap::lock_for_fork, &SharedHeap::unlock_after_fork,
                   &SharedHeap::unlock_after_fork) == 0;

std::unique_ptr<SharedHeap> make_of_process() {
  if (!is_wanted()) return nullptr;
  return SharedHeap::create(mib_of_environment("MESHRUN_SHARED_MEMORY_MIB", kDefaultMiB));
}

}  // namespace

std::unique_ptr<SharedHeap> SharedHeap::create(size_t bytes) {
  bytes = round_up(bytes);
  uint64_t token = 0;
  if (bytes <= kGranule || getrandom(&token, sizeof(token), 0) != sizeof(token)) return nullptr;
  // Growing a file past this is a signal.
  rlimit longest{};
  if (getrlimit(RLIMIT_FSIZE, &longest) != 0 || longest.rlim_cur < bytes) return nullptr;
  os::UniqueFd fd(memfd_create(kName, MFD_CLOEXEC));
  if (!fd) return nullptr;
  void* const base = ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0
                         ? map_shared(fd.get(), bytes)
                         : MAP_FAILED;
  if (base == MAP_FAILED) return nullptr;
  std::optional<int> node = own_numa_node();
  if (node && !prefer_numa_node(base, bytes, *node)) node.reset();
  std::unique_ptr<SharedHeap> heap(
      new SharedHeap(std::move(fd), static_cast<std::byte*>(base), bytes));
  heap->node_ = node;
  heap->address_ = {digest_of(node_identity(node_facts())), token, static_cast<int64_t>(bytes),
                    getpid(), heap->fd_.get()};
  std::memcpy(base, &token, sizeof(token));
  return heap;
}

SharedHeap* SharedHeap::of_process() {
  const auto is_usable = [](SharedHeap* heap) { return heap == nullptr || !heap->is_inherited(); };
  if (is_made && is_usable(of_this_process)) return of_this_process;
  MutexLock lock(making);
  if (!is_made || !is_usable(of_this_process)) {
    // A parent's stays mapped: tensors that the child has inherited lie in it.
    of_this_process = make_of_process().release();
    is_made = true;
  }
  return of_this_process;
}

void SharedHeap::lock_for_fork() MESHRUN_TSA(no_thread_safety_analysis) {
  making.Lock();
  if (SharedHeap* const heap = of_this_process) heap->mu_.Lock();
}

void SharedHeap::unlock_after_fork() MESHRUN_TSA(no_thread_safety_analysis) {
  if (SharedHeap* const heap = of_this_process) heap->mu_.Unlock();
  making.Unlock();
}

// The first page has the token.
SharedHeap::SharedHeap(os::UniqueFd fd, std::byte* base, size_t bytes)
    : fd_(std::move(fd)),
      base_(base),
      bytes_(bytes),
      forks_(fork_count()),
      free_{{kGranule, bytes - kGranule}} {}

SharedHeap::~SharedHeap() { munmap(base_, bytes_); }

bool SharedHeap::is_inherited() const { return fork_count() != forks_; }

void* SharedHeap::allocate(size_t bytes) {
  if (is_inherited()) return nullptr;
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
  if (is_inherited()) return;
  const auto offset = static_cast<size_t>(static_cast<std::byte*>(block) - base_);
  size_t length;
  {
    MutexLock lock(mu_);
    const auto used = used_.find(offset);
    length = used->second;
    used_.erase(used);
    used_bytes_ -= length;
  }
  // Takes as long as a large transfer.
  madvise(block, length, MADV_REMOVE);
  MutexLock lock(mu_);
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
  // Before what proves that this is the process.
  const std::optional<os::ProcessStat> owner = os::ReadProcessStat(address.pid);
  // In another pid namespace this may be anything: do not touch what is not a memfd of ours.
  char target[64] = {};
  if (readlink(path.c_str(), target, sizeof(target) - 1) < 0 ||
      !std::string_view(target).starts_with(fmt::format("/memfd:{}", kName))) {
    return nullptr;
  }
  const os::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd) return nullptr;
  const auto bytes = static_cast<size_t>(address.bytes);
  // The memfd may belong to another process of ours and may be too short: check its token and its
  // length before mapping it.
  uint64_t token = 0;
  const bool is_its = pread(fd.get(), &token, sizeof(token), 0) == sizeof(token) &&
                      token == address.token && lseek(fd.get(), 0, SEEK_END) == address.bytes;
  void* const base = is_its ? map_shared(fd.get(), bytes) : MAP_FAILED;
  if (base == MAP_FAILED) return nullptr;
  return std::unique_ptr<PeerHeap>(
      new PeerHeap(address, owner ? owner->start_ticks : 0, static_cast<std::byte*>(base), bytes));
}

bool PeerHeap::has_owner_ended() const {
  if (owner_started_ == 0) return false;
  const std::optional<os::ProcessStat> owner = os::ReadProcessStat(address_.pid);
  if (!owner) return kill(address_.pid, 0) != 0 && errno == ESRCH;
  if (owner->start_ticks != owner_started_) return true;
  // Its first thread may be gone before the others.
  return owner->IsZombie() && owner->threads <= 1;
}

PeerHeap::~PeerHeap() { munmap(base_, bytes_); }

std::byte* PeerHeap::at(uint64_t offset, size_t bytes) const {
  if (offset < SharedHeap::kGranule || offset > bytes_ || bytes > bytes_ - offset) return nullptr;
  return base_ + offset;
}

}  // namespace meshrun
